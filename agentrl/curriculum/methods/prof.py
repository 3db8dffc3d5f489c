"""PROF: process rewards choose which episodes train, and never enter the gradient."""

from __future__ import annotations

import math
from dataclasses import replace

from pydantic import Field

from agentrl.curriculum.parts import CurriculumContext, Filter, Group, Solving
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError
from agentrl.types.figures.of_episodes import turns_of
from agentrl.types.figures.sums import total


class ProfSettings(Solving):
    """`keep`: share of a group that trains. `process`: name of the turns' reward component; None: their sum."""

    keep: float = Field(0.5, gt=0, le=1)
    process: str | None = None


class Prof(Filter):
    """Keeps the solved episodes with the highest mean process score and the failed ones with the lowest, half of either
    kind; if one kind has fewer, the other fills up.

    Set `process` to the component if turns have other rewards too, e.g. `turn_format`. The authors' variant that drops
    failed episodes at random (Filter-Correct) is not implemented.
    """

    Settings = ProfSettings
    source = "arXiv:2509.03403 (README)"
    certainty = "B"

    def select(self, groups: list[Group], wanted: int, context: CurriculumContext) -> list[Group]:
        if not any(self._scores(episode) for group in groups for episode in group.episodes):
            name = f" {self.settings.process!r}" if self.settings.process else ""
            raise CreditError(
                f"no turn of iteration {context.iteration} has a reward{name}, which prof ranks episodes by",
                place="curriculum: prof",
                remedy="score turns: ToolResult(..., rewards={...}), or a reward component of turns",
            )
        return [self._balanced(group) for group in groups]

    def _balanced(self, group: Group) -> Group:
        by_score = sorted(group.episodes, key=lambda episode: (-self._mean_score(episode), episode.id))
        solved = [e for e in by_score if self.settings.solves(e)]
        failed = [e for e in reversed(by_score) if not self.settings.solves(e)]
        keep = math.ceil(self.settings.keep * len(by_score))
        right = min(len(solved), max(math.ceil(keep / 2), keep - len(failed)))
        kept = solved[:right] + failed[: keep - right]
        return replace(group, episodes=sorted(kept, key=lambda episode: episode.id))

    def _scores(self, episode: Episode) -> list[float]:
        name = self.settings.process
        return [
            value
            for turn in episode.own_turns
            for key, value in turn.rewards.items()
            if value is not None and name in (None, key)
        ]

    def _mean_score(self, episode: Episode) -> float:
        """Mean over the turns of the policy. A turn without a score (e.g. a malformed call) counts as 0."""
        return total(self._scores(episode)) / max(turns_of(episode), 1)
