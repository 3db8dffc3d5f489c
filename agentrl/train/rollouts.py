"""Rollouts that go on while the trainer works: groups in flight, and those that have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentrl.curriculum import GroupPlan
from agentrl.rollout.budgets import Budgets
from agentrl.rollout.collector import rare_collections
from agentrl.rollout.play import announce
from agentrl.rollout.runner import EpisodeSpec, RolloutContext, Runner
from agentrl.rollout.specs import group_id, group_specs, missing
from agentrl.store.run_dir import RunDir
from agentrl.train.admission import Admission
from agentrl.train.room import Room
from agentrl.types.reporter import Reporter
from agentrl.types.task import Task


class BegunGroup:
    """A group from its begin until it trains.

    Attributes:
        iteration, index: its place in the order in which groups were drawn.
        begun: the policy's version when its first episode began; None: all wait for room.
        ended: None while it is played; else a number that rises from one ended group to the next.
    """

    def __init__(self, iteration: int, index: int, plan: GroupPlan) -> None:
        self.iteration, self.index, self.plan = iteration, index, plan
        self.id = group_id(iteration, index, plan.task)
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
    def from_state(cls, state: dict[str, Any]) -> BegunGroup:
        """What `state_dict` told."""
        plan = GroupPlan(msgspec.convert(state["task"], Task), state["size"], state["max_turns"])
        group = cls(state["iteration"], state["index"], plan)
        group.begun = state["begun"]
        return group


class Rollouts:
    """Plays groups in the background, and stores their episodes.

    Args:
        concurrency: episodes in flight at most. Those of older groups begin first: also groups that a filter asks for
            in addition go before all of later iterations.

    Attributes:
        version: of the policy that episodes begin under now.
        groups: all that were drawn and have not trained.
    """

    def __init__(self, context: RolloutContext, run: RunDir, progress: Reporter, concurrency: int) -> None:
        self.version = 0
        self.groups: list[BegunGroup] = []
        self.flow = Flow()
        self._run, self._progress, self._harness = run, progress, context
        self._runner = Runner(
            context, concurrency=concurrency, on_failure=run.add_failure, on_phase=progress.episode_stage
        )
        self._budgets = Budgets(context.limits)
        self._room = Room(concurrency)
        self._playing: set[asyncio.Task[None]] = set()
        self._endings = 0
        self._calm = rare_collections()
        self._calm.__enter__()

    def begin(self, groups: Iterable[BegunGroup]) -> None:
        """Begins groups. Episodes that are stored already are not played again."""
        begun = list(groups)
        specs = {group.id: group_specs(group.plan, group.id, group.iteration) for group in begun}
        todo = missing([spec for each in specs.values() for spec in each], self._run)
        announce(self._harness, todo)
        for group in begun:
            self.groups.append(group)
            mine = [spec for spec in todo if spec.group_id == group.id]
            if len(mine) < group.plan.size:  # a run that was killed has begun it
                group.begun = min(self._versions(group), default=self.version)
            episodes = [asyncio.create_task(self._play(spec, group)) for spec in mine]
            self._playing.add(asyncio.create_task(self._end(group, episodes), name=group.id))

    def _versions(self, group: BegunGroup) -> set[int]:
        """Of the policies that sampled the group's stored episodes, and the one that it is known to have begun under.

        What a checkpoint knows of a begin may be one version late: it is written before the new weights are out.
        """
        stored = self._run.episodes(iteration=group.iteration, split="train")
        nodes = [node for episode in stored if episode.group_id == group.id for node in episode.nodes]
        known = set() if group.begun is None else {group.begun}
        return known | {span.version for node in nodes for span in node.versions}

    async def take(self, admission: Admission, sizes: Sequence[int]) -> list[BegunGroup]:
        """Waits for the groups that the next update trains on, and takes them away, in the order they were drawn.

        Args:
            sizes: how many the next update trains on, the one after it, ..., as `Admission.choose` takes them.

        Raises:
            TooManyUserErrors, EngineDown, SandboxDown, DeadPolicy: as `Runner.run`.
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
        ended, self._playing = await asyncio.wait(self._playing, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # raises what it raised

    def _away(self, chosen: list[BegunGroup]) -> list[BegunGroup]:
        self.groups = [group for group in self.groups if group not in chosen]
        return sorted(chosen, key=lambda group: (group.iteration, group.index))

    def metrics(self) -> dict[str, float]:
        """Since the last call: episodes in flight (mean), seconds in which none was; groups that wait to train."""
        ended = sum(group.ended is not None for group in self.groups)
        return {**self.flow.metrics(), "buffered_groups": ended, "begun_groups": len(self.groups) - ended}

    async def close(self) -> None:
        """Cancels what is in flight: nothing of it is stored."""
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)
        self._calm.__exit__(None, None, None)

    async def _play(self, spec: EpisodeSpec, group: BegunGroup) -> None:
        async with self._room.place(group.iteration, group.index):
            if group.begun is None:
                group.begun = self.version
            self.flow.change(+1)
            try:
                episode = await self._runner.play(spec)
            finally:
                self.flow.change(-1)
        self._run.add(episode)
        self._progress.episode(episode)
        self._budgets.spend(episode)

    async def _end(self, group: BegunGroup, episodes: list[asyncio.Task[None]]) -> None:
        try:
            await asyncio.gather(*episodes)
        except BaseException:
            for episode in episodes:
                episode.cancel()
            await asyncio.gather(*episodes, return_exceptions=True)
            raise
        self._endings += 1
        group.ended = self._endings


class Flow:
    """How many episodes were in flight, over time."""

    def __init__(self) -> None:
        self.running = 0
        self._begin()

    def _begin(self) -> None:
        self._since = self._at = time.perf_counter()
        self._episode_seconds, self._idle_seconds = 0.0, 0.0

    def change(self, by: int) -> None:
        """So many more episodes are in flight."""
        now = time.perf_counter()
        self._episode_seconds += self.running * (now - self._at)
        self._idle_seconds += (now - self._at) * (self.running == 0)
        self._at, self.running = now, self.running + by

    def metrics(self) -> dict[str, float]:
        """Means since the last call."""
        self.change(0)
        seconds = max(self._at - self._since, 1e-9)
        found = {"episodes_in_flight": self._episode_seconds / seconds, "rollouts_wait_s": self._idle_seconds}
        self._begin()
        return found
