"""DART's data curation: fewer and shorter rollouts if they suffice, training on selected turns, stored successes.

The released trainer enables none of this. The rules follow the paper as far as it describes them; the numbers are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CreditedEpisode, CurriculumContext, Filter, Group, GroupPlan, Schedule, Solving
from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import turns_of

SOURCE = "arXiv:2509.23866; Computer-use-agents/dart-gui@e0e606d3"


class RolloutSettings(Solving):
    """`easy`: success rate beyond which a task gets fewer rollouts. `slack`: turns above its longest success."""

    easy: float = Field(0.6, ge=0, lt=1)
    least: int = Field(2, gt=0)
    slack: int = Field(2, ge=0)


class DartRollouts(Schedule):
    """A task solved at rate p > easy gets (1 - p) / (1 - easy) of its episodes, at least `least`; and no more turns
    than its longest success so far plus `slack`. Rates are of the last time the task was tried."""

    Settings = RolloutSettings
    source = SOURCE
    certainty = "C"

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        own, known = self.settings, self.state.get(group.task.id)
        if known is None:
            return group
        size = max(min(own.least, group.size), math.ceil(group.size * min(1.0, (1 - known["rate"]) / (1 - own.easy))))
        turns = group.max_turns if known["longest"] == 0 else min(group.max_turns, known["longest"] + own.slack)
        return replace(group, size=size, max_turns=turns)

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        for group in groups:
            if group.episodes:
                solved = [e for e in group.episodes if self.settings.solves(e)]
                longest = self.state.get(group.task.id, {}).get("longest", 0)
                longest = max([longest, *map(turns_of, solved)])
                self.state[group.task.id] = {"rate": len(solved) / len(group.episodes), "longest": longest}


class TurnSettings(Section):
    """Share of an iteration's turns that train."""

    keep: float = Field(0.8, gt=0, le=1)


class DartTurns(Filter):
    """Only the turns of highest entropy train.

    Turns of other policies are ignored. A turn's entropy is estimated by the mean of -log-probability over its sampled
    tokens, as recorded by the engine, without a forward pass.
    """

    Settings = TurnSettings
    source = SOURCE
    certainty = "C"
    _masked = 0

    def metrics(self) -> dict[str, float]:
        return {"masked": float(self._masked)}

    def refine(self, credited: list[CreditedEpisode], context: CurriculumContext) -> list[CreditedEpisode]:
        turns = sorted(
            (-entropy, number, index)
            for number, each in enumerate(credited)
            for index, entropy in _surprise(each.episode).items()
        )
        dropped: dict[int, set[int]] = {}
        masked = turns[math.ceil(self.settings.keep * len(turns)) :]
        for _, number, index in masked:
            dropped.setdefault(number, set()).add(index)
        self._masked = len(masked)
        return [
            replace(x, masked_turns=x.masked_turns | dropped.get(number, set())) for number, x in enumerate(credited)
        ]


class SuccessSettings(Solving):
    """`success`: value of `metric` from which an episode is stored, and below which a group has failed. `stage`: name
    of an earlier stage whose successes are known from the beginning."""

    stage: str | None = None


class DartSuccesses(Filter):
    """Adds the task's latest success of an earlier iteration, if any, to a group in which all episodes failed.

    A success joins one group of an iteration, the first that failed at its task: an episode trains once. Its tokens are
    an older policy's, so the recipe must correct for that; DART clamps the weight at 1 (`train.importance: {high: 1}`).
    With `stage`, the successes that an earlier stage collected are known from the beginning.
    """

    Settings = SuccessSettings
    source = SOURCE
    certainty = "C"
    trains_older_episodes = True
    _joined = 0

    def select(self, groups: list[Group], wanted: int, context: CurriculumContext) -> list[Group]:
        joined: set[str] = set()
        if self.settings.stage is not None and "collected" not in self.state:
            self._know(sorted(context.of_stage(self.settings.stage), key=lambda episode: episode.id))
            self.state["collected"] = len(self.state.get("ids", {}))
        selected = [self._with_success(group, joined, context) for group in groups]
        self._joined = len(joined)
        return selected

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        for group in groups:
            self._know(group.episodes)

    def metrics(self) -> dict[str, float]:
        return {"joined": float(self._joined)}

    def _know(self, episodes: Sequence[Episode]) -> None:
        known = self.state.setdefault("ids", {})
        known |= {each.task.id: each.id for each in episodes if self.settings.solves(each)}

    def _with_success(self, group: Group, joined: set[str], context: CurriculumContext) -> Group:
        """`joined`: the stored episodes that have joined a group of this iteration."""
        known = self.state.get("ids", {}).get(group.task.id)
        if known is None or known in joined or not group.episodes or self.settings.solved(group):
            return group
        joined.add(known)
        success = msgspec.structs.replace(context.episode(known), group_id=group.id)
        return replace(group, episodes=[*group.episodes, success])


def _surprise(episode: Episode) -> dict[int, float]:
    """Mean -log-probability of the sampled tokens of every turn that trains, by index.

    Rounded: the last digits depend on which episodes shared the engine's batch, and equal turns shall tie.
    """
    found = {}
    for turn in episode.sampled_turns:
        logprobs = episode.nodes[turn.node].logprobs or [0.0]
        found[turn.index] = round(-sum(logprobs) / len(logprobs), 3)
    return found
