"""Preferences among episodes that tried the same: of every group its best against its worst."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from agentrl.types.episode import Episode
from agentrl.types.errors import TrainError


class Rewarded(Protocol):
    """An episode, or the index's row of one."""

    @property
    def id(self) -> str: ...
    @property
    def group_id(self) -> str: ...


R = TypeVar("R", bound=Rewarded)


def best_and_worst(
    members: Iterable[R], reward: Callable[[R], float | None], *, min_gap: float = 1e-6
) -> list[tuple[R, R]]:
    """Returns the best and the worst of every group with a reward gap of at least `min_gap`, in order of ids.

    Ties are broken by the smaller id, so that the order of the members does not matter.

    Args:
        reward: returns the reward of a member; None: it was not scored.

    Raises:
        TrainError: no group has this gap.
    """
    groups: dict[str, list[tuple[float, R]]] = {}
    for member in sorted(members, key=lambda each: each.id):
        if (value := reward(member)) is not None:
            groups.setdefault(member.group_id, []).append((value, member))
    pairs = []
    for known in groups.values():
        best, worst = (extreme(known, key=lambda each: each[0]) for extreme in (max, min))
        if best[0] - worst[0] >= min_gap:
            pairs.append((best[1], worst[1]))
    if not pairs:
        raise TrainError(
            f"none of {len(groups)} groups has two episodes of different reward",
            remedy="collect several episodes a task, at a temperature above 0",
        )
    return pairs


def best_two_and_worst(
    members: Iterable[R], reward: Callable[[R], float | None], *, min_gap: float = 1e-6
) -> list[tuple[R, R, R]]:
    """Returns the best, the second best and the worst of every group in which the last two have a reward gap of at
    least `min_gap`, in order of ids. Ties and errors are as for `best_and_worst`."""
    groups: dict[str, list[tuple[float, R]]] = {}
    for member in sorted(members, key=lambda each: each.id):
        if (value := reward(member)) is not None:
            groups.setdefault(member.group_id, []).append((value, member))
    ranked = [sorted(known, key=lambda each: -each[0]) for known in groups.values() if len(known) > 2]
    found = [(known[0][1], known[1][1], known[-1][1]) for known in ranked if known[1][0] - known[-1][0] >= min_gap]
    if not found:
        raise TrainError(
            f"none of {len(groups)} groups has three episodes of which the second best is better than the worst",
            remedy="collect several episodes a task, at a temperature above 0",
        )
    return found


def check_prompts(chosen: Episode, rejected: Episode) -> None:
    """Raises TrainError unless two episodes of a group answer the same prompt."""
    if chosen.prompt != rejected.prompt:
        raise TrainError(
            f"episodes {chosen.id} and {rejected.id} of one group have different prompts",
            remedy="preferences compare answers to the same prompt: leave out hints and other changes of the prompt",
        )
