"""Staleness: which groups may begin under a policy, which of them an update trains on, and how old what trains is.

AReaL (arXiv:2505.24298, section 5.1) bounds what was ever begun by (eta + version + 1) * B episodes, with B of an
iteration. That alone bounds the mean age: a slow episode may be overtaken again and again. Here the bound holds for
every token: groups train in the order in which they end, as long as those that began before can still train in time.
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
        max_staleness: eta, updates between the begin of a group and the one that trains on it, at most.
        iterations: of the training, in all.
    """

    max_staleness: int
    iterations: int

    def open_until(self, version: int) -> int:
        """The groups of all iterations before this one may begin under the policy `version`: those of eta + version + 1
        iterations in all, and no more than the training takes."""
        return min(self.max_staleness + version + 1, self.iterations)

    def choose(self, groups: Sequence[G], version: int, sizes: Sequence[int]) -> list[G] | None:
        """The groups that the update of policy `version` trains on; None: wait until another one ends.

        A group that began under policy b trains in update b + eta at the latest. Whatever is chosen, no more groups may
        be left that must train by update t than the updates after this one up to t train on. There is always a choice:
        in all, no more are left than the next eta updates take.

        Args:
            groups: all that were drawn and have not trained.
            sizes: how many groups update `version`, `version` + 1, ... trains on: as many as were drawn for that
                iteration, which may be fewer than its recipe asks for. The iterations that have begun, in order.
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
    """Updates between the sampling of a trained token and its training, over all trained tokens.

    Args:
        version: of the policy that is about to be trained.

    Returns:
        staleness_mean, staleness_max; staleness: by its value, the share of the tokens; mixed_versions: the share of
        samples that several versions sampled. Nothing if the engine told no versions.
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
