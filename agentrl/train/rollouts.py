"""Rollouts that go on while the trainer works: groups in flight, and those that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from agentrl.curriculum import GroupPlan
from agentrl.rollout.scheduler import RolloutScheduler
from agentrl.rollout.specs import EpisodeSpec, group_id, group_specs, missing
from agentrl.store.run_dir import RunDir
from agentrl.train.staleness import StalenessPolicy
from agentrl.types.task import Task


class BegunGroup:
    """A group from its begin until it trains.

    Attributes:
        iteration, index: its place in the order in which groups were drawn.
        begun: the policy's version when its first episode began; None: all wait for room.
        ended: None while it is played; else a number that rises from one ended group to the next.
    """

    def __init__(self, iteration: int, index: int, plan: GroupPlan, prefix: str = "") -> None:
        self.iteration, self.index, self.plan = iteration, index, plan
        self.id = group_id(iteration, index, plan.task, prefix)
        self.begun: int | None = None
        self.ended: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """JSON values. The task is among them: a schedule may have changed it."""
        task = msgspec.to_builtins(self.plan.task)
        return {
            "iteration": self.iteration, "index": self.index, "begun": self.begun,
            "task": task, "size": self.plan.size, "max_turns": self.plan.max_turns,
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: dict[str, Any], prefix: str = "") -> BegunGroup:
        """What `state_dict` told."""
        plan = GroupPlan(msgspec.convert(state["task"], Task), state["size"], state["max_turns"])
        group = cls(state["iteration"], state["index"], plan, prefix)
        group.begun = state["begun"]
        return group


class Rollouts:
    """Has groups played in the background.

    Args:
        scheduler: plays and stores their episodes. Those of older groups begin first: also groups that a filter asks
            for in addition go before all of later iterations.

    Attributes:
        version: of the policy that episodes begin under now.
        groups: all that were drawn and have not trained.
    """

    def __init__(self, scheduler: RolloutScheduler[EpisodeSpec], run: RunDir) -> None:
        self.version = 0
        self.groups: list[BegunGroup] = []
        self._run, self._scheduler = run, scheduler
        self._playing: dict[str, asyncio.Future[list[None]]] = {}
        self._endings = 0

    def begin(self, groups: Iterable[BegunGroup]) -> None:
        """Begins groups. Episodes that are stored already are not played again."""
        begun = list(groups)
        specs = {group.id: group_specs(group.plan, group.id, group.iteration) for group in begun}
        todo = missing([spec for each in specs.values() for spec in each], self._run)
        self._scheduler.expect(todo)
        for group in begun:
            self.groups.append(group)
            mine = [spec for spec in todo if spec.group_id == group.id]
            if len(mine) < group.plan.size:  # a run that was killed has begun it
                group.begun = min(self._versions(group), default=self.version)
            playing = asyncio.gather(*(self._submit(spec, group) for spec in mine))
            playing.add_done_callback(partial(self._end, group))
            self._playing[group.id] = playing

    def _submit(self, spec: EpisodeSpec, group: BegunGroup) -> asyncio.Future[None]:
        def begun() -> None:
            if group.begun is None:
                group.begun = self.version

        return self._scheduler.submit(spec, group.iteration, group.index, begun=begun)

    def _versions(self, group: BegunGroup) -> set[int]:
        """Of the policies that sampled the group's stored episodes, and the one that it is known to have begun under.

        What a checkpoint knows of a begin may be one version late: it is written before the new weights are out.
        """
        stored = self._run.episodes(iteration=group.iteration, split="train")
        nodes = [node for episode in stored if episode.group_id == group.id for node in episode.nodes]
        known = set() if group.begun is None else {group.begun}
        return known | {span.version for node in nodes for span in node.versions}

    async def take(self, admission: StalenessPolicy, sizes: Sequence[int]) -> list[BegunGroup]:
        """Waits for the groups that the next update trains on, and takes them away, in the order they were drawn.

        Args:
            sizes: how many the next update trains on, the one after it, ..., as `StalenessPolicy.choose` takes them.

        Raises:
            TooManyUserErrors, EngineDown, SandboxDown, DeadPolicy: as `RolloutScheduler.submit`.
        """
        while (chosen := admission.choose(self.groups, self.version, sizes)) is None:
            await self._ending()
        return self._away(chosen)

    async def take_all(self, groups: list[BegunGroup]) -> list[BegunGroup]:
        """Waits for these groups, and takes them away."""
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

    def _end(self, group: BegunGroup, playing: asyncio.Future[list[None]]) -> None:
        if not playing.cancelled() and playing.exception() is None:
            self._endings += 1
            group.ended = self._endings

    def _away(self, chosen: list[BegunGroup]) -> list[BegunGroup]:
        self.groups = [group for group in self.groups if group not in chosen]
        return sorted(chosen, key=lambda group: (group.iteration, group.index))

    def metrics(self) -> dict[str, float]:
        """Since the last call: episodes in flight (mean), seconds in which none was; groups that wait to train."""
        ended = sum(group.ended is not None for group in self.groups)
        return {**self._scheduler.utilization(), "buffered_groups": ended, "begun_groups": len(self.groups) - ended}
