"""The pool over real sandboxes; a faulty backend stands in only where a fault is the point."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.sandbox.pool import Pool
from agentrl.types.sandbox import Sandbox, SandboxLost, SandboxSpec, SandboxStartFailed
from tests.command import agentrl
from tests.sandbox.test_backend import processes_with, running
from tests.waiting import turns, until_async

pytestmark = pytest.mark.slow

SPEC = SandboxSpec(memory_mb=128)
OTHER = SandboxSpec(memory_mb=64, env={"X": "1"})


class Behind(NamespaceBackend):
    """The real backend, whose starts can be held back or made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[SandboxSpec] = []
        self.faults: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, spec: SandboxSpec, *, label: str = ""):  # type: ignore[no-untyped-def]
        self.made.append(spec)
        await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        return await super().create(spec, label=label)

    @property
    def alive(self) -> int:
        return len(self._alive)


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    backend = Behind()
    yield backend
    await backend.close()


def pid_of(sandbox: Sandbox) -> int:
    return int(sandbox._inner._tree.init_pid)  # type: ignore[attr-defined]


async def test_made_ahead_in_schedule_order(behind: Behind) -> None:
    pool = Pool(behind, ahead=2)
    pool.prefetch([SPEC, OTHER, SPEC, OTHER])
    await pool.settled()
    assert behind.made == [SPEC, OTHER]
    first = await pool.acquire(SPEC, label="episode-1")
    await pool.settled()
    assert behind.made == [SPEC, OTHER, SPEC]
    assert (await first.exec("echo hi")).text == "hi\n"
    second = await pool.acquire(OTHER)
    assert (await second.exec("echo $X")).text == "1\n"
    assert pool.stats().ready == 2
    await pool.close()
    assert behind.alive == 0


async def test_one_in_the_making_is_awaited(behind: Behind) -> None:
    pool = Pool(behind, ahead=1)
    behind.gate.clear()
    pool.prefetch([SPEC])
    await asyncio.sleep(0)
    waiting = asyncio.create_task(pool.acquire(SPEC))
    await turns()
    assert not waiting.done()
    behind.gate.set()
    await waiting
    assert (pool.stats().awaited, len(behind.made)) == (1, 1)
    await pool.close()


async def test_without_a_schedule_it_passes_through(behind: Behind) -> None:
    pool = Pool(behind, ahead=4)
    async with await pool.create(SPEC) as sandbox:
        assert (await sandbox.exec("true")).ok
    assert (pool.stats().fresh, behind.made, behind.alive) == (1, [SPEC], 0)
    await pool.close()


async def test_kinds_that_nobody_asks_for_any_more_make_room(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(behind, ahead=2)
    pool.prefetch([SPEC] * 2)
    await pool.settled()
    pool.prefetch([OTHER] * 2)
    await pool.settled()
    assert behind.made == [SPEC] * 2, "a short time: whoever is to have them may still come"
    monkeypatch.setattr("agentrl.sandbox.pool.UNASKED_S", 0.0)
    pool.prefetch([OTHER, SPEC, SPEC])
    await pool.settled()
    assert behind.made == [SPEC] * 2, "the schedule has them"
    pool.prefetch([OTHER] * 2)
    await pool.settled()
    assert behind.made == [SPEC] * 2 + [OTHER] * 2
    assert (pool.stats().warm, behind.alive) == (2, 2)
    await pool.close()


async def test_a_used_sandbox_is_never_handed_out_again(behind: Behind) -> None:
    pool = Pool(behind, ahead=1)
    first = await pool.acquire(SPEC)
    await first.write("/tmp/mark", "mine")
    gone = pid_of(first)
    await pool.release(first, dirty=False)  # a lie that changes nothing
    second = await pool.acquire(SPEC)
    assert pid_of(second) != gone
    with pytest.raises(FileNotFoundError):
        await second.read("/tmp/mark")
    with pytest.raises(ProcessLookupError):
        os.kill(gone, 0)
    await pool.close()


async def test_an_untouched_one_is_kept_and_the_old_handle_is_dead(behind: Behind) -> None:
    pool = Pool(behind, ahead=1)
    first = await pool.acquire(SPEC, label="one")
    same = pid_of(first)
    assert (await first.health()).alive
    await first.close()
    await first.close()
    second = await pool.acquire(SPEC, label="two")
    assert (pid_of(second), pool.stats().kept, len(behind.made)) == (same, 1, 1)
    with pytest.raises(SandboxLost, match="of one is gone"):
        await first.exec("true")
    assert not (await first.health()).alive
    os.kill(same, signal.SIGKILL)
    with pytest.raises(SandboxLost, match="of two is gone"):
        await second.exec("true")
    third = await pool.acquire(SPEC)
    await pool.release(third, dirty=True)
    assert pool.stats().kept == 1
    await pool.close()


async def test_a_dead_one_is_not_handed_out(behind: Behind) -> None:
    pool = Pool(behind, ahead=2)
    pool.prefetch([SPEC] * 2)
    await pool.settled()
    for sandbox in list(behind._alive):
        os.kill(sandbox._tree.init_pid, signal.SIGKILL)
    sandbox = await pool.acquire(SPEC)
    assert (await sandbox.exec("true")).ok
    assert pool.stats().dead == 2
    await pool.settled()
    assert behind.alive == 1
    await pool.close()


async def test_one_that_waited_too_long_is_replaced(behind: Behind) -> None:
    pool = Pool(behind, ahead=1, max_idle_s=0.0)
    pool.prefetch([SPEC])
    await pool.settled()
    await pool.acquire(SPEC)
    assert (pool.stats().dead, len(behind.made)) == (1, 2)
    await pool.close()


async def test_a_failed_start_is_raised_to_the_one_who_asks(behind: Behind) -> None:
    pool = Pool(behind, ahead=1)
    behind.faults = [SandboxStartFailed("no luck")]
    pool.prefetch([SPEC, SPEC])
    await pool.settled()
    with pytest.raises(SandboxStartFailed, match="no luck"):
        await pool.acquire(SPEC)
    assert (await (await pool.acquire(SPEC)).exec("true")).ok
    assert pool.stats().failed == 1
    await pool.close()


async def test_the_cap_holds(behind: Behind) -> None:
    pool = Pool(behind, ahead=8, cap=2)
    pool.prefetch([SPEC] * 8)
    await pool.settled()
    assert behind.alive == 2
    boxes = [await pool.acquire(SPEC), await pool.acquire(SPEC)]
    with pytest.raises(SandboxStartFailed, match="2 in use, 0 warm, at most 2"):
        await pool.acquire(SPEC, deadline_s=0.05)
    waiting = asyncio.create_task(pool.acquire(OTHER))  # goes before the schedule
    await asyncio.sleep(0)
    await boxes[0].close()
    assert (await (await waiting).exec("echo $X")).text == "1\n"
    assert behind.alive == 2
    await pool.close()


async def test_a_warm_one_of_another_kind_makes_room(behind: Behind) -> None:
    pool = Pool(behind, ahead=2, cap=2)
    pool.prefetch([OTHER] * 5)
    await pool.settled()
    assert (await (await pool.acquire(SPEC)).exec("true")).ok
    await pool.close()


async def test_cancelled_callers_cost_nothing(behind: Behind) -> None:
    pool = Pool(behind, ahead=1, cap=1)
    behind.gate.clear()
    pool.prefetch([SPEC])
    waiting = asyncio.create_task(pool.acquire(SPEC))
    await turns()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    behind.gate.set()
    sandbox = await pool.acquire(SPEC)
    assert len(behind.made) == 1
    full = asyncio.create_task(pool.acquire(SPEC))
    await turns()
    full.cancel()
    with suppress(asyncio.CancelledError):
        await full
    await sandbox.exec("true")
    await sandbox.close()
    assert (await (await pool.acquire(SPEC)).exec("true")).ok
    await pool.close()


async def test_closing_leaves_nothing_whatever_goes_on(behind: Behind) -> None:
    pool = Pool(behind, ahead=3)
    held = await pool.acquire(SPEC)
    pending = asyncio.create_task(held.exec("sleep 98771"))
    await running("sleep 98771")
    pool.prefetch([SPEC] * 3)
    await until_async(lambda: behind.made.count(SPEC) > 1)
    behind.gate.clear()
    waiting = asyncio.create_task(pool.acquire(OTHER))
    await until_async(lambda: OTHER in behind.made)
    await pool.close()
    await pool.close()
    assert behind.alive == 0
    with pytest.raises(SandboxLost):
        await pending
    with pytest.raises(SandboxStartFailed, match="pool was closed"):
        await waiting
    with pytest.raises(SandboxStartFailed, match="pool was closed"):
        await pool.acquire(SPEC)
    assert not processes_with("98771")


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 ahead"):
        Pool(NamespaceBackend(), ahead=-1)


def test_a_recipe_asks_for_a_pool(tmp_path: Path) -> None:
    arguments = ["rollout", "quickstart", "--n", "12", "--script", "oracle", "--out", "run", "--set", "concurrency=2"]
    done = agentrl(*arguments, "--set", "sandbox.pool=3", cwd=tmp_path)
    said = re.search(
        r"sandboxes: (\d+) ready when asked for, (\d+) in the making, (\d+) not begun", done.stdout + done.stderr
    )
    assert said is not None, done.stdout + done.stderr
    assert sum(map(int, said.groups())) == 12
    assert int(said[1]) + int(said[2]) > 0
