"""Staleness: which groups may begin under a policy, which groups an update trains on, and how stale their tokens are.

AReaL (arXiv:2505.24298, section 5.1) limits the number of begun episodes to (eta + version + 1) * B, with B episodes
per iteration. This bounds only the mean staleness: a slow episode may be overtaken again and again. Here the bound
holds for every token: groups train in the order in which they end, as long as older groups can still train in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from agentrl.types.sample import TrainingSample


class Begun(Protocol):
    """A group that was drawn.

    Attributes:
        begun: the policy's version when its first episode began; None: all wait for room.
        ended: None while it is played; else a number that rises from one ended group to the next.
    """

    begun: int | None
    ended: int | None


G = TypeVar("G", bound=Begun)


@dataclass(frozen=True)
class StalenessPolicy:
    """The rule.

    Attributes:
        max_staleness: eta, the maximum number of updates between the start of a group and its training.
        iterations: total number of iterations of the training.
    """

    max_staleness: int
    iterations: int

    def open_until(self, version: int) -> int:
        """Returns the first iteration whose groups may not begin under the policy `version` yet: eta + version + 1, or
        the end of the training."""
        return min(self.max_staleness + version + 1, self.iterations)

    def choose(self, groups: Sequence[G], version: int, sizes: Sequence[int]) -> list[G] | None:
        """Selects the groups for the update of policy `version`. Returns None to wait until another group ends.

        A group that began under policy b must train in update b + eta at the latest. The choice therefore leaves at
        most as many groups with the deadline t as the later updates up to t can train on. A choice always exists: in
        total, the remaining groups fit into the next eta updates.

        Args:
            groups: all groups that were drawn and have not trained.
            sizes: the number of groups of update `version`, `version` + 1, ..., for all iterations that have begun. It
                is the number of groups drawn for the iteration, which may be smaller than in the recipe.
        """
        wanted = sizes[0]
        eta = self.max_staleness
        last = {id(each): version if each.begun is None else each.begun for each in groups}
        ended = sorted((each for each in groups if each.ended is not None), key=lambda each: each.ended or 0)
        chosen: list[G] = []
        taken: set[int] = set()
        for update in range(version, version + eta + 1):
            urgent = [each for each in groups if last[id(each)] + eta <= update and id(each) not in taken]
            needed = len(urgent) - sum(sizes[1 : update - version + 1])
            ready = [each for each in urgent if each.ended is not None]
            if needed > len(ready):
                return None
            chosen += sorted(ready, key=lambda each: each.ended or 0)[: max(needed, 0)]
            taken = set(map(id, chosen))
        chosen += [each for each in ended if id(each) not in taken][: max(wanted - len(chosen), 0)]
        return chosen if len(chosen) >= wanted else None


def staleness_metrics(samples: Sequence[TrainingSample], version: int) -> dict[str, Any]:
    """The number of updates between sampling a token and training on it, over all trained tokens.

    Args:
        version: version of the policy that is about to be trained.

    Returns:
        staleness_mean, staleness_max; staleness: the share of tokens by value; mixed_versions: the share of samples
        that several versions sampled. Empty if the engine reported no versions.
    """
    ages: Counter[int] = Counter()
    for sample in samples:
        for span in sample.versions:
            ages[version - span.version] += int(sample.loss_mask[span.start : span.end].sum())
    total = sum(ages.values())
    if not total:
        return {}
    return {
        "staleness_mean": sum(age * count for age, count in ages.items()) / total,
        "staleness_max": max(ages),
        "staleness": {str(age): ages[age] / total for age in sorted(ages)},
        "mixed_versions": sum(len({span.version for span in sample.versions}) > 1 for sample in samples) / len(samples),
    }
