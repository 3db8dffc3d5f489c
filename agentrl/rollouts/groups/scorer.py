"""Scores groups: reward functions of all members run once, after the last member of a group has ended.

Members are stored when they end. The last member keeps its slot in the scheduler until the group's scores are stored,
which bounds the groups in memory by the episodes in flight. After a kill, the same command scores the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from agentrl.config.limits import Limits
from agentrl.rewards.components import RewardSet
from agentrl.rewards.declare import Beliefs
from agentrl.rewards.groups import score_group
from agentrl.rewards.spans import Decode
from agentrl.rollouts.faults.budgets import Budgets
from agentrl.rollouts.faults.failures import describe, verdict, within
from agentrl.types.episode import Episode
from agentrl.types.errors import asked_to_stop

Item = TypeVar("Item")

_log = logging.getLogger(__name__)


class GroupRecord(Protocol):
    """Storage of the members of groups."""

    def unscored(self, group_id: str) -> Sequence[Episode]:
        """Returns the finished members in order. Empty if exactly these members are scored already."""
        ...

    def add(self, group_id: str, members: Sequence[Episode]) -> None:
        """Stores the scored members of a group."""
        ...


class GroupScorer(Generic[Item]):
    """Scores each group when its last member has ended.

    Args:
        group_of: returns the group id of an item.
        on_failure: called for every failed attempt, with a dict for `failures.jsonl`.
        read_blob: returns the bytes of an image of the run by its hash.
        beliefs: returns the policy's probabilities of answers; None: no policy samples.
        decode: gives the text of sampled tokens, by which the tokens of spans are found.
    """

    def __init__(
        self,
        rewards: RewardSet,
        record: GroupRecord,
        limits: Limits,
        group_of: Callable[[Item], str],
        *,
        on_failure: Callable[[dict[str, Any]], None],
        read_blob: Callable[[str], bytes] | None = None,
        beliefs: Beliefs | None = None,
        decode: Decode | None = None,
    ) -> None:
        self._rewards, self._record, self._limits, self._group_of = rewards, record, limits, group_of
        self._beliefs, self._decode = beliefs, decode
        self._on_failure, self._read_blob = on_failure, read_blob
        self._to_come: dict[str, int] = {}
        self.renew_budgets()

    def renew_budgets(self) -> None:
        """Resets the failure counts."""
        self._budgets = Budgets(self._limits)

    def expect(self, items: Iterable[Item]) -> None:
        """Announces episodes: a group is complete when all its announced episodes have ended."""
        for item in items:
            group = self._group_of(item)
            self._to_come[group] = self._to_come.get(group, 0) + 1

    async def ended(self, item: Item) -> None:
        """Scores the group of a stored episode if it was the last. Raises the errors of `score`."""
        if self._was_last(item):
            await self.score(self._group_of(item))

    def aborted(self, item: Item) -> None:
        """Removes an episode that will not end: the others are the group, which is scored by `score`.

        The last member may have ended already, and be cancelled while it scores its group.
        """
        if self._group_of(item) in self._to_come:
            self._was_last(item)

    def _was_last(self, item: Item) -> bool:
        group = self._group_of(item)
        left = self._to_come.pop(group) - 1
        if left:
            self._to_come[group] = left
        return not left

    async def score(self, group_id: str) -> None:
        """Scores a group whose members have all ended, unless it is scored already.

        A failure is reported and counted. The members then have no reward, and the same command scores the group later.

        Raises:
            TooManyUserErrors, EngineDown, SandboxDown, ServiceDown: the failure budget of a cause is spent.
            StoreError: the scores cannot be stored.
        """
        members = self._record.unscored(group_id)
        if not members:
            return
        for number in range(self._limits.retries + 1):
            try:
                async with within(self._limits.score_s, "scoring a group", "limits.score_s", None):
                    scores = await score_group(self._rewards, members, self._read_blob, self._beliefs, self._decode)
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
        """Reports a failure. Returns whether it was the last attempt."""
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
