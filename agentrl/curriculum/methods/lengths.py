"""LASER-D: targets of length that follow what right answers need, for each difficulty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from agentrl.curriculum.methods.noise import with_data
from agentrl.curriculum.parts import CurriculumContext, Group, GroupPlan, Schedule, Solving
from agentrl.rewards.functions.length import difficulty


class LaserDSettings(Solving):
    """`thresholds`: the targets to choose from, in sampled tokens. `expected`: the right answers that a group must keep
    within its target. `every`: iterations between two choices. `key`: field of the task's data with the targets."""

    thresholds: list[int] = Field(min_length=1)
    expected: float = Field(1.0, gt=0)
    every: int = Field(1, gt=0)
    key: str = "length_targets"


class LaserD(Schedule):
    """Writes the target of each difficulty into `task.data[key]`, for the reward `laser_d`.

    The difficulty of a group is `high` if at least two thirds of its n members are right, `medium` from one third,
    else `low`. The target is the least threshold T with floor(c(T) m) >= `expected`: c(T) is the share of the episodes
    of that difficulty with at most T sampled tokens, and m the least right members of such a group: floor(2n/3),
    floor(n/3), 1. Without such a threshold it is the longest episode. A difficulty that did not occur keeps its target.

    The authors measure on a set of its own; here the groups that trained since the last choice are measured.
    """

    Settings = LaserDSettings
    source = "arXiv:2505.15612; hkust-nlp/Laser@78b09dd"
    certainty = "A"

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        targets = self.state.get("targets")
        if targets is None:
            return group
        return replace(group, task=with_data(group.task, self.settings.key, dict(targets)))

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        own = self.settings
        seen = self.state.setdefault("seen", {})
        for group in groups:
            if group.episodes:
                level = difficulty(own.solved(group), len(group.episodes))
                lengths = [episode.reply_tokens for episode in group.episodes]
                seen.setdefault(level, []).append(lengths)
        if (context.iteration + 1) % own.every == 0:
            chosen = {level: self._target(level, found) for level, found in seen.items()}
            self.state = {"targets": {**self.state.get("targets", {}), **chosen}, "seen": {}}

    def _target(self, level: str, groups: Sequence[Sequence[int]]) -> int:
        own = self.settings
        lengths, size = [length for group in groups for length in group], max(map(len, groups))
        least = {"high": math.floor(size * 2 / 3), "medium": math.floor(size / 3), "low": 1}[level]
        threshold: int
        for threshold in sorted(own.thresholds):
            share = sum(length <= threshold for length in lengths) / len(lengths)
            if math.floor(share * least) >= own.expected:
                return threshold
        return max(lengths)

    def metrics(self) -> dict[str, float]:
        return {f"target/{level}": float(target) for level, target in self.state.get("targets", {}).items()}
