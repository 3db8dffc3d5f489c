"""The rollout buffer: groups from their draw until an update trains on them.

Groups are drawn ahead of their update, as far as the staleness policy allows, and played meanwhile. With
`max_staleness: 0` the groups of an update begin after the previous update, and all of them train in it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from agentrl.curriculum import Group, GroupPlan
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.rollouts.specs import EpisodeSpec, group_id, group_specs, missing
from agentrl.training.stages.record import StageRecord
from agentrl.training.staleness import StalenessPolicy
from agentrl.types.episode import Episode, is_fork
from agentrl.types.reporter import Reporter
from agentrl.types.task import Task


class DrawnGroup:
    """A group from its draw until it trains.

    Attributes:
        iteration, index: its position in the order in which groups were drawn.
        begun: the policy's version when its first episode began; None: no episode has begun.
        ended: None while it is played; else a number that increases from one ended group to the next.
    """

    def __init__(self, iteration: int, index: int, plan: GroupPlan, prefix: str = "") -> None:
        self.iteration, self.index, self.plan = iteration, index, plan
        self.id = group_id(iteration, index, plan.task, prefix)
        self.begun: int | None = None
        self.ended: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """JSON values. They include the task: a schedule may have changed it."""
        task = msgspec.to_builtins(self.plan.task)
        return {
            "iteration": self.iteration, "index": self.index, "begun": self.begun,
            "task": task, "size": self.plan.size, "max_turns": self.plan.max_turns,
            "temperature": self.plan.temperature,
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: dict[str, Any], prefix: str = "") -> DrawnGroup:
        """The group from the result of `state_dict`."""
        task = msgspec.convert(state["task"], Task)
        plan = GroupPlan(task, state["size"], state["max_turns"], state.get("temperature"))
        group = cls(state["iteration"], state["index"], plan, prefix)
        group.begun = state["begun"]
        return group


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of an update.

    Attributes:
        groups: in the order in which they were drawn, with the episodes that count.
        episodes: all episodes of the groups, sorted by id, including failed ones: the order in which they ended must
            not affect the optimiser.
    """

    groups: list[Group]
    episodes: list[Episode]

    @classmethod
    def of(
        cls, found: Iterable[tuple[str, Task, Sequence[Episode]]], counts: Callable[[Episode], bool]
    ) -> RolloutBatch:
        """The batch of groups that were played or recorded: id, task and all episodes of each.

        Args:
            counts: whether an episode counts in its group (`Truncation.counts`).
        """
        groups = [(Group(id, task, [e for e in all if counts(e)]), all) for id, task, all in found]
        episodes = sorted((e for _, all in groups for e in all), key=lambda episode: episode.id)
        return cls([group for group, _ in groups], episodes)

    def __add__(self, other: RolloutBatch) -> RolloutBatch:
        episodes = sorted([*self.episodes, *other.episodes], key=lambda episode: episode.id)
        return RolloutBatch([*self.groups, *other.groups], episodes)


@dataclass(frozen=True)
class GroupSource:
    """Source of groups, and the rule that selects the episodes that count.

    Attributes:
        draw: draws a number of groups for an iteration.
        more: the number of additional groups that an iteration needs, given its groups and the number of rounds so far.
        counts: whether an episode counts in its group, and therefore in the baselines.
        size: number of groups drawn for an iteration.
        further: number of extra episodes of a group: the last ones to end are aborted.
        further_groups: number of extra groups of an update: the last ones to end are aborted. Requires that every
            group trains in the update that it was drawn for.
    """

    draw: Callable[[int, int], list[GroupPlan]]
    more: Callable[[Sequence[Group], int], int]
    counts: Callable[[Episode], bool]
    size: int
    further: int = 0
    further_groups: int = 0


OnGroup = Callable[[RolloutBatch], Awaitable[None]]
"""Takes a group that has ended, while others are played."""


class GroupBuffer(Protocol):
    """Gives each update its groups."""

    async def next_batch(self, version: int, each: OnGroup | None = None) -> RolloutBatch:
        """The groups of the update of policy `version`.

        Args:
            each: is called with every group in the order in which they were drawn, as soon as that and all before it
                have ended.
        """
        ...

    def metrics(self, trained: RolloutBatch) -> dict[str, Any]:
        """For the line of metrics of that update."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for `load_state_dict`, as JSON values."""
        ...

    def load_state_dict(self, state: dict[str, Any], version: int) -> None:
        """Restores the state of a run that continues at policy `version`."""
        ...

    def resume(self) -> None:
        """Restarts the unfinished groups of a restored state."""
        ...


class RolloutBuffer:
    """Has groups played, and gives each update its groups.

    Args:
        scheduler: plays and stores the episodes. Episodes of older groups begin first; additional groups that a filter
            requests begin before those of later iterations.
        record: the record of the stage that the episodes belong to.
    """

    def __init__(
        self,
        scheduler: RolloutScheduler[EpisodeSpec],
        source: GroupSource,
        policy: StalenessPolicy,
        record: StageRecord,
        reporter: Reporter,
    ) -> None:
        self._scheduler, self._source, self._policy = scheduler, source, policy
        self._record, self._reporter = record, reporter
        self._groups: list[DrawnGroup] = []  # that have not trained
        self._playing: dict[str, asyncio.Future[Any]] = {}
        self._ends: dict[str, dict[asyncio.Future[None], EpisodeSpec]] = {}  # of the episodes of these groups
        self._aborted = self._aborted_groups = 0  # episodes, and whole groups, since the last metrics
        self._endings = 0
        self._version = 0  # of the policy that episodes begin under now
        self._drawn = 0  # the groups of all iterations before this one have been drawn
        self._sizes: dict[int, int] = {}  # groups that were drawn for each of them that has not trained

    async def next_batch(self, version: int, each: OnGroup | None = None) -> RolloutBatch:
        """Begins all groups that may begin, and waits for the groups of the update of policy `version`, including
        additional groups that the curriculum requests.

        Args:
            each: as `GroupBuffer.next_batch`; only if every group trains in the update that it was drawn for.

        Raises:
            AgentRLError: as `RolloutScheduler.submit`.
        """
        self._version = version
        self._scheduler.renew_budgets()
        self._draw_ahead()
        sizes = [self._sizes.get(iteration, self._source.size) for iteration in range(version, self._drawn)]
        self._tell_phase(self._groups[: sizes[0]])
        again = self._trained_before_a_kill()
        if each is not None:
            return await self._one_by_one(again or self._groups[: sizes[0]], each)
        batch = self._read(await (self._take_all(again) if again else self._take(sizes)))
        await self._abort_rest()
        rounds, index = 1, sizes[0] + self._source.further_groups
        while more := self._source.more(batch.groups, rounds):
            extra = self._draw(more, version, first=index)
            self._tell_phase(extra)
            self._begin(extra)
            batch += self._read(await self._take_all(extra))
            rounds, index = rounds + 1, index + len(extra)
        return batch

    def metrics(self, trained: RolloutBatch) -> dict[str, Any]:
        """`trained_groups`; since the last call, `aborted_episodes` and `aborted_groups` (where there were enough), the
        mean number of episodes in flight and the seconds without any; and the number of groups that wait to train."""
        ended = sum(group.ended is not None for group in self._groups)
        episodes, groups = self._aborted, self._aborted_groups
        self._aborted = self._aborted_groups = 0
        return {
            **({"aborted_episodes": episodes} if self._source.further or self._source.further_groups else {}),
            **({"aborted_groups": groups} if self._source.further_groups else {}),
            "trained_groups": [group.id for group in trained.groups],
            **self._scheduler.utilization(),
            "buffered_groups": ended,
            "begun_groups": len(self._groups) - ended,
        }

    def state_dict(self) -> dict[str, Any]:
        """The drawn groups, as JSON values. Their episodes are stored in the run directory when they end."""
        return {
            "drawn": self._drawn,
            "sizes": [[iteration, size] for iteration, size in self._sizes.items()],
            "groups": [group.state_dict() for group in self._groups],
        }

    def load_state_dict(self, state: dict[str, Any], version: int) -> None:
        """Restores the result of `state_dict`. `resume` then plays the missing episodes.

        Args:
            version: version of the policy. Older checkpoints of synchronous training contain nothing else.
        """
        self._version, self._drawn = version, state.get("drawn", version)
        self._sizes = {iteration: size for iteration, size in state.get("sizes", [])}
        self._groups = [DrawnGroup.from_state(each, self._record.stage.prefix) for each in state.get("groups", [])]

    def resume(self) -> None:
        """Begins the groups of a loaded state."""
        groups, self._groups = self._groups, []
        self._begin(groups)

    def _tell_phase(self, groups: Sequence[DrawnGroup]) -> None:
        name = f"iteration {self._version + 1}/{self._policy.iterations}"
        self._reporter.phase(name, sum(group.plan.size for group in groups))

    def _draw_ahead(self) -> None:
        self._sizes = {iteration: size for iteration, size in self._sizes.items() if iteration >= self._version}
        while self._drawn < self._policy.open_until(self._version):
            drawn = self._draw(self._source.size + self._source.further_groups, self._drawn, first=0)
            self._sizes[self._drawn] = min(len(drawn), self._source.size)
            self._begin(drawn)
            self._drawn += 1

    def _draw(self, count: int, iteration: int, first: int) -> list[DrawnGroup]:
        """Groups for an iteration, the first of them with index `first`."""
        plans = self._source.draw(count, iteration)
        return [DrawnGroup(iteration, first + k, plan, self._record.stage.prefix) for k, plan in enumerate(plans)]

    def _begin(self, groups: Iterable[DrawnGroup]) -> None:
        """Submits the episodes of groups. Stored episodes are not played again."""
        begun = list(groups)
        further = self._source.further
        specs = {group.id: group_specs(group.plan, group.id, group.iteration, further) for group in begun}
        for group in begun:
            if further and self._is_whole(group):  # a run that was killed had begun it
                del specs[group.id]
        todo = missing([spec for each in specs.values() for spec in each], self._record.run)
        self._scheduler.expect(todo)
        by_group: dict[str, list[EpisodeSpec]] = defaultdict(list)
        for spec in todo:
            by_group[spec.group_id].append(spec)
        for group in begun:
            self._groups.append(group)
            mine = by_group[group.id]
            if len(mine) < group.plan.size + further:  # a run that was killed has begun it
                group.begun = min(self._versions(group), default=self._version)
            ends = self._ends[group.id] = {self._submit(spec, group): spec for spec in mine}
            playing: asyncio.Future[Any]
            if not ends:  # all are stored: the kill may have come before the group was scored
                playing = asyncio.gather(self._settle(group))
            elif further:
                playing = asyncio.ensure_future(self._first_to_end(group, ends))
            else:
                playing = asyncio.gather(*ends)
            playing.add_done_callback(partial(self._end, group))
            self._playing[group.id] = playing

    def _settle(self, group: DrawnGroup) -> asyncio.Future[None]:
        return self._scheduler.settle(group.id, group.iteration, group.index)

    async def _first_to_end(self, group: DrawnGroup, ends: Mapping[asyncio.Future[None], EpisodeSpec]) -> None:
        """Waits until the group is complete, and aborts its other episodes."""
        waiting = set(ends)
        while waiting and not self._is_whole(group):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # raises what it raised
        self._aborted += len(waiting)
        await self._scheduler.abort({each: ends[each] for each in waiting})
        await self._settle(group)

    def _is_whole(self, group: DrawnGroup) -> bool:
        """Returns True if enough episodes of the group have ended without failure."""
        rows = [row for row in self._record.run.rows(group_id=group.id) if not is_fork(row.id)]
        return sum(row.status in ("done", "truncated") for row in rows) >= group.plan.size

    def _submit(self, spec: EpisodeSpec, group: DrawnGroup) -> asyncio.Future[None]:
        def begun() -> None:
            if group.begun is None:
                group.begun = self._version

        return self._scheduler.submit(spec, group.iteration, group.index, begun=begun)

    def _end(self, group: DrawnGroup, playing: asyncio.Future[Any]) -> None:
        if not playing.cancelled() and playing.exception() is None:
            self._endings += 1
            group.ended = self._endings

    def _versions(self, group: DrawnGroup) -> set[int]:
        """Returns the versions that sampled the group's stored episodes, and the version at its start.

        The latter may be one version too late in a checkpoint, which is written before the new weights are published.
        """
        nodes = [node for episode in self._record.group(group.id) for node in episode.nodes]
        known = set() if group.begun is None else {group.begun}
        return known | {span.version for node in nodes for span in node.versions}

    def _trained_before_a_kill(self) -> list[DrawnGroup]:
        """Returns the groups of this update if a kill came between its metrics and its checkpoint."""
        key = ("train", self._version + 1)
        done = (m for m in self._record.lines(self._version + 1) if (m["split"], m["iteration"]) == key)
        ids = set(next(done, {}).get("trained_groups", []))
        return [group for group in self._groups if group.id in ids]

    async def _take(self, sizes: Sequence[int]) -> list[DrawnGroup]:
        """Waits for the groups of the update, and removes them from the buffer.

        Args:
            sizes: as in `StalenessPolicy.choose`.
        """
        while (chosen := self._choose(sizes)) is None:
            await self._ending()
        return self._away(chosen)

    def _choose(self, sizes: Sequence[int]) -> list[DrawnGroup] | None:
        """The groups of the update; None: some of them have not ended."""
        if not self._source.further_groups:
            return self._policy.choose(self._groups, self._version, sizes)
        ended = [group for group in self._groups if group.ended is not None]
        ended.sort(key=lambda group: group.ended or 0)
        return ended[: sizes[0]] if len(ended) >= sizes[0] else None

    async def _abort_rest(self) -> None:
        """Aborts the groups that an over-provisioned update does not take. Their ended episodes are stored already."""
        rest = [group.id for group in self._groups] if self._source.further_groups else []
        self._groups = [group for group in self._groups if group.id not in rest]
        self._aborted_groups += len(rest)
        ends = {ended: spec for id in rest for ended, spec in self._ends.pop(id).items()}
        playing = [self._playing.pop(id) for id in rest if id in self._playing]
        for each in playing:
            if each.done():
                each.result()  # raises what it raised
        self._aborted += sum(not ended.done() for ended in ends)
        await self._scheduler.abort(ends)
        for each in playing:
            each.cancel()
        await asyncio.gather(*playing, return_exceptions=True)

    async def _one_by_one(self, groups: Sequence[DrawnGroup], each: OnGroup) -> RolloutBatch:
        """Waits for one group after the other, hands it out, and removes it from the buffer."""
        batch = RolloutBatch([], [])
        for group in sorted(groups, key=lambda group: (group.iteration, group.index)):
            own = self._read(await self._take_all([group]))
            await each(own)
            batch += own
        return batch

    async def _take_all(self, groups: list[DrawnGroup]) -> list[DrawnGroup]:
        """Waits for these groups, and removes them from the buffer."""
        while any(group.ended is None for group in groups):
            await self._ending()
        return self._away(groups)

    async def _ending(self) -> None:
        """Waits until a group ends, or fails."""
        await asyncio.wait(self._playing.values(), return_when=asyncio.FIRST_COMPLETED)
        ended = [id for id, playing in self._playing.items() if playing.done()]
        await asyncio.sleep(0)  # `_end` of each has been called then: groups may end in one pass of the loop
        for id in ended:
            self._playing.pop(id).result()  # raises what it raised

    def _away(self, taken: list[DrawnGroup]) -> list[DrawnGroup]:
        self._groups = [group for group in self._groups if group not in taken]
        for group in taken:
            self._ends.pop(group.id, None)
        return sorted(taken, key=lambda group: (group.iteration, group.index))

    def _read(self, groups: Sequence[DrawnGroup]) -> RolloutBatch:
        """The groups with their episodes: the only time that an iteration reads them."""
        found = [(group.id, group.plan.task, self._record.group(group.id)) for group in groups]
        return RolloutBatch.of(found, self._source.counts)
