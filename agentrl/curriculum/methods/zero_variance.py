"""Filters of zero-variance groups, which give a group-relative estimator no signal."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CurriculumContext, Filter, Group
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError
from agentrl.types.figures.of_episodes import figure, immediate
from agentrl.types.figures.sums import vary


class ZeroVarianceSettings(Section):
    """`metric`: the compared value. None: the outcome reward; `total`: the outcome plus the turn rewards; or the name
    of a reward component, before its weight (of turns: their sum), as `acc` in DAPO's filter; `success`: as defined by
    the recipe. The seats of an episode (docs/credit.md) are compared with their own role."""

    metric: str | None = None


OF_SEATS = (None, "reward", "total")
"""Metrics that exist per role of an episode."""


class ZeroVariance(Filter):
    """Leaves out groups without variance of `metric`, including groups of one."""

    Settings = ZeroVarianceSettings
    source = "DAPO, arXiv:2503.14476, without its resampling"
    certainty = "A"

    def select(self, groups: list[Group], wanted: int, context: CurriculumContext) -> list[Group]:
        return self._varied(groups)

    def _varied(self, groups: Sequence[Group]) -> list[Group]:
        metric = self.settings.metric
        found = [[_by_seat(episode, metric) for episode in group.episodes] for group in groups]
        if any(found) and all(value is None for values in found for seats in values for value in seats.values()):
            raise CreditError(
                f"no episode has a reward component {metric!r}, which {self.name} compares",
                place=f"curriculum: {self.name}",
                remedy="name a component of the recipe, or total, or leave metric out",
            )
        return [group for group, values in zip(groups, found, strict=True) if _vary(values)]


class DynamicSamplingSettings(ZeroVarianceSettings):
    """`rounds`: of rollouts in one iteration at most. `metric` as in `zero_variance`."""

    rounds: int = Field(10, gt=0)


class DynamicSampling(ZeroVariance):
    """Dynamic sampling: plays more groups until enough of them vary, or `rounds` are over; then trains on the first
    `train.groups` that vary.

    A further round plays as many groups as are missing (verl plays a whole batch and discards the surplus). After the
    last round the groups found so far train; verl stops with an error. verl's unlimited rounds and its groups of one
    that pass the filter are not implemented.
    """

    Settings = DynamicSamplingSettings
    source = "arXiv:2503.14476; volcengine/verl@b178a3c recipe/dapo"

    def more(self, groups: Sequence[Group], wanted: int, rounds: int) -> int:
        missing = wanted - len(self._varied(groups))
        return max(missing, 0) if rounds < self.settings.rounds else 0

    def select(self, groups: list[Group], wanted: int, context: CurriculumContext) -> list[Group]:
        return self._varied(groups)[:wanted]


def value_of(episode: Episode, metric: str | None) -> float | None:
    """Returns the compared value; None if the component was not scored."""
    return figure(episode, metric or "reward")


def _by_seat(episode: Episode, metric: str | None) -> dict[str, float | None]:
    """Returns the value of the episode, and of each role if the policy plays several: one may win and another lose."""
    found = {"": value_of(episode, metric)}
    own = episode.own_turns
    if metric not in OF_SEATS or len({turn.agent for turn in own}) < 2:
        return found
    for turn in own:
        so_far = found.setdefault(turn.agent, episode.outcome_of(turn)) or 0.0
        found[turn.agent] = so_far + (immediate(turn) if metric == "total" else 0.0)
    return found


def _vary(members: Sequence[dict[str, float | None]]) -> bool:
    seats = {name for member in members for name in member}
    return any(vary(v for member in members if (v := member.get(name)) is not None) for name in seats)
