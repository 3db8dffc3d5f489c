"""Rewards of replies with and without a thought, in three stages."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

import msgspec

from agentrl import Task
from agentrl.curriculum import CurriculumContext, Group, GroupPlan, Schedule
from agentrl.types.episode import Episode

SLOPE = 2.0
"""How fast the penalty of a kind of reply grows with its share."""


def thinks(episode: Episode) -> bool:
    """Returns True if the reply has a thought that is not empty."""
    return any(re.search(r"<think>\s*[^\s.<]", turn.text) for turn in episode.own_turns)


class Share(Schedule):
    """Writes the share of replies with a thought in the last iteration into `task.data["think_share"]`."""

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        if "share" not in self.state:
            return group
        data = {**group.task.data, "think_share": self.state["share"]}
        return replace(group, task=msgspec.structs.replace(group.task, data=data))

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        found = [thinks(episode) for group in groups for episode in group.episodes]
        if found:
            self.state = {"share": sum(found) / len(found)}

    def metrics(self) -> dict[str, float]:
        return {"think_share": self.state["share"]} if self.state else {}


def thinking(
    task: Task,
    group: list[Episode],
    *,
    right: str,
    balance: float,
    second: int,
    third: int,
    alpha: float,
    beta: float,
) -> list[float | None]:
    """Pays 1 and 0 for a right and a wrong reply with a thought, 2 and -1 without one, changed by stage.

    - Before iteration `second`: with the share z of a kind of reply, d = 2 (z - balance), within 0 and 1, moves its
      rewards towards 0 and -1 (with a thought), 1 and -2 (without): (1 - d) r + d target.
    - Before `third`: as they are.
    - Then: a right reply gains exp(-alpha z) - 1, a wrong one 1 - exp(-beta z); z is its length, standardised among the
      right or the wrong replies of the group.

    Args:
        right: the component by which replies are right.
        balance: the share from which a kind of reply is penalised.
    """
    flags = [(bool((each.components.get(right) or 0.0) >= 1), thinks(each)) for each in group]
    naive = {(True, True): 1.0, (False, True): 0.0, (True, False): 2.0, (False, False): -1.0}
    rewards = [naive[flag] for flag in flags]
    iteration, share = group[0].iteration, task.data.get("think_share")
    if iteration < second and share is not None:
        for k, (good, thought) in enumerate(flags):
            pull = min(1.0, max(0.0, SLOPE * ((share if thought else 1 - share) - balance)))
            target = naive[good, thought] - 1
            rewards[k] = (1 - pull) * rewards[k] + pull * target
    elif iteration >= third:
        for good, rate in ((True, alpha), (False, beta)):
            kin = [k for k, flag in enumerate(flags) if flag[0] is good]
            lengths = [group[k].reply_tokens for k in kin]
            if len(kin) > 1:
                mean, spread = fmean(lengths), max(stdev(lengths), 1e-6)
                for k, length in zip(kin, lengths, strict=True):
                    z = (length - mean) / spread
                    rewards[k] += (math.exp(-rate * z) - 1) if good else (1 - math.exp(-rate * z))
    return [*rewards]
