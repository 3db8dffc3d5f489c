"""Scores groups: reward functions that take all members run once, after the last member of a group ended.

Members are stored as they end. The last one's place in the scheduler is kept until the group's scores are stored, so
that no more groups are in memory than episodes may be in flight. After a kill in between, the same command scores the
group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from agentrl.config.limits import Limits
from agentrl.rewards.components import RewardSet
from agentrl.rewards.groups import score_group
from agentrl.rollout.faults.budgets import Budgets
from agentrl.rollout.faults.failures import describe, verdict, within
from agentrl.types.episode import Episode
from agentrl.types.errors import asked_to_stop

Item = TypeVar("Item")

_log = logging.getLogger(__name__)


class GroupRecord(Protocol):
    """Where the members of groups are kept."""

    def unscored(self, group_id: str) -> Sequence[Episode]:
        """The members that are data, in order; none if they have the score of this very group already."""
        ...

    def add(self, group_id: str, members: Sequence[Episode]) -> None:
        """Keeps the scored members of a group."""
        ...


class GroupScorer(Generic[Item]):
    """Scores every group whose last member has ended.

    Args:
        group_of: the group of an item.
        on_failure: is told of what failed.
    """

    def __init__(
        self,
        rewards: RewardSet,
        record: GroupRecord,
        limits: Limits,
        group_of: Callable[[Item], str],
        *,
        on_failure: Callable[[dict[str, Any]], None],
    ) -> None:
        self._rewards, self._record, self._limits, self._group_of = rewards, record, limits, group_of
        self._on_failure = on_failure
        self._to_come: dict[str, int] = {}
        self.renew_budgets()

    def renew_budgets(self) -> None:
        """What has failed so far no longer counts."""
        self._budgets = Budgets(self._limits)

    def expect(self, items: Iterable[Item]) -> None:
        """Tells which episodes are to come."""
        for item in items:
            group = self._group_of(item)
            self._to_come[group] = self._to_come.get(group, 0) + 1

    async def ended(self, item: Item) -> None:
        """An episode has ended and is stored. Scores its group if it was the last. Raises as `score`."""
        group = self._group_of(item)
        self._to_come[group] -= 1
        if not self._to_come[group]:
            del self._to_come[group]
            await self.score(group)

    async def score(self, group_id: str) -> None:
        """Scores a group of which all members have ended, unless that was done.

        A failure is told and counted: the members then have no reward, and the same command scores the group again.

        Raises:
            TooManyUserErrors, EngineDown, SandboxDown, ServiceDown: too many groups failed by one cause.
            StoreError: the scores cannot be stored.
        """
        members = self._record.unscored(group_id)
        if not members:
            return
        for number in range(self._limits.retries + 1):
            try:
                async with within(self._limits.score_s, "scoring a group", "limits.score_s", None):
                    scores = await score_group(self._rewards, members)
                break
            except BaseException as error:
                if asked_to_stop(error):
                    raise
                if self._failed(group_id, number, error):
                    return
            await asyncio.sleep(self._limits.backoff_s * 2**number)
        self._record.add(group_id, [score.onto(member) for score, member in zip(scores, members, strict=True)])
        self._budgets.succeed()

    def _failed(self, group_id: str, number: int, error: BaseException) -> bool:
        """Tells of a failure; whether it was the last attempt."""
        judged = verdict(error)
        failed = describe(error, "score")
        final = not judged.retry or number == self._limits.retries
        user = judged.status != "infra_error"
        status = "user_error" if user else "infra_error"
        self._on_failure(
            {"group": group_id, "attempt": number, "status": status, "final": final, **msgspec.structs.asdict(failed)}
        )
        if final:
            _log.warning("group %s could not be scored: %s", group_id, failed.message)
            self._budgets.fail(failed, f"group {group_id}", user=user)
        return final
