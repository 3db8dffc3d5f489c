"""A worker whose event loop is blocked is replaced by the longest deadline of a stage, not by the sum of all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.config.limits import Limits
from agentrl.distributed.handle import WorkerDied
from agentrl.distributed.pulse import PING_S
from agentrl.distributed.worker import Played
from agentrl.distributed.worker_pool import WorkerPool, longest_episode, longest_stage
from agentrl.types.episode import Episode
from tests.rollouts.world import make_context, make_parts, specs
from tests.standing import standing

BLOCKED_S = 1000.0


class Blocks:
    """A handle of a worker. Its process lives, and its event loop stands still from the first episode on."""

    closed: ClassVar[list[str]] = []

    def __init__(self, name: str, blocked_s: float) -> None:
        self.name, self._blocked_s = name, blocked_s
        self._gone = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()

    async def call(self, method: str, *args: Any) -> Any:
        if method == "play" and self._blocked_s:
            self._free.clear()
            asyncio.get_running_loop().call_later(self._blocked_s, self._free.set)
        over = [asyncio.create_task(event.wait()) for event in (self._gone, self._free)]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        if self._gone.is_set():
            raise WorkerDied("its process was closed", place=self.name)
        return Played([_done(args[1])], [], [], []) if method == "play" else None

    async def close(self) -> None:
        self.closed.append(self.name)
        self._gone.set()


def _done(spec: Any) -> Episode:
    return Episode(id=spec.id, group_id=spec.group_id, task=spec.task, status="done", prompt=[], nodes=[], turns=[])


class Launcher:
    """Of two workers the first blocks."""

    host = "127.0.0.1"

    def __init__(self, blocked_s: float) -> None:
        self.blocked_s = blocked_s

    async def open(self) -> None: ...

    async def spawn(self, name: str, cls: type, *args: Any) -> Blocks:
        return Blocks(name, self.blocked_s if name == "worker 0" else 0.0)

    async def close(self) -> None: ...


def script(task: Any, rng: Any) -> Any:
    yield from ()


def played(tmp_path: Path, blocked_s: float) -> tuple[float, list[dict[str, Any]]]:
    """How long an episode takes whose first worker blocks, and the failures."""
    use = {"use": "tests.distributed.test_blocked_loops:Launcher", "blocked_s": blocked_s, "rollout_workers": 1}
    parts = make_parts(tmp_path, scale=use)
    failures: list[dict[str, Any]] = []
    Blocks.closed.clear()

    async def program() -> float:
        context = replace(make_context(parts, script), on_failure=failures.append)
        object.__setattr__(context.engine, "script_name", "script")
        pool = WorkerPool(parts.recipe)
        began = asyncio.get_running_loop().time()
        (episode,) = await pool.play(context, specs(1)[0])
        assert episode.status == "done"
        passed = asyncio.get_running_loop().time() - began
        await pool.close()
        return passed

    return standing(program()), failures


def test_a_worker_whose_loop_is_blocked_is_replaced(tmp_path: Path) -> None:
    passed, failures = played(tmp_path, 1e9)
    most = longest_stage(Limits()) + 2 * PING_S
    assert passed < most < longest_episode(Limits())
    (failure,) = failures
    assert failure["message"].startswith("worker 0: its event loop did not answer for 1800 s")
    assert Blocks.closed == ["worker 0", "worker 1"]


def test_one_that_is_blocked_for_a_while_goes_on(tmp_path: Path) -> None:
    assert played(tmp_path, BLOCKED_S) == (pytest.approx(BLOCKED_S), [])
