"""Handles: the same calls of an object here, in a process, and on Ray."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from agentrl.config.scale import ScaleSettings
from agentrl.distributed.handle import Launcher, RemoteError, ResourceRequest, WorkerDied
from agentrl.distributed.launchers import LAUNCHERS
from agentrl.distributed.process import ProcessLauncher
from agentrl.types.errors import MissingExtra, RecipeError

pytestmark = pytest.mark.slow


class Counter:
    """Something to call."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise RecipeError(f"{start} is negative", place="here", remedy="count from 0")
        self.count, self.calls = start, 0
        self.closed_file: str | None = None

    async def add(self, by: int) -> int:
        await asyncio.sleep(0)
        self.count += by
        return self.count

    async def where(self) -> int:
        return os.getpid()

    async def close_into(self, path: str) -> None:
        self.closed_file = path

    async def wait(self) -> None:
        self.calls += 1
        await asyncio.Event().wait()

    async def waiting(self) -> int:
        return self.calls

    async def trip(self) -> None:
        waiting = asyncio.create_task(asyncio.Event().wait())
        waiting.cancel()
        await waiting

    async def fail(self, how: str) -> None:
        if how == "extra":
            raise MissingExtra("nothing", "none")  # its constructor takes other arguments than `Exception` keeps
        raise RecipeError("no", place="there", remedy="yes")

    async def unpicklable(self) -> object:
        return lambda: None

    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def close(self) -> None:
        if self.closed_file is not None:
            with open(self.closed_file, "w") as file:
                file.write("closed")


@pytest.fixture(params=["local", "process"])
async def launcher(request: pytest.FixtureRequest) -> AsyncIterator[Launcher]:
    made = LAUNCHERS.load(request.param, {}).make(scale=ScaleSettings(), request=ResourceRequest("rollout_workers", 1))
    await made.open()
    yield made
    await made.close()


async def test_many_calls_at_once_and_a_close(launcher: Launcher, tmp_path: os.PathLike[str]) -> None:
    handle = await launcher.spawn("one", Counter, 5)
    assert sorted(await asyncio.gather(*(handle.call("add", 1) for _ in range(50)))) == list(range(6, 56))
    note = os.path.join(tmp_path, "closed")
    await handle.call("close_into", note)
    waiting = asyncio.create_task(handle.call("wait"))
    await asyncio.sleep(0)
    await handle.close()
    with pytest.raises(WorkerDied, match="closed"):
        await waiting
    assert os.path.exists(note), "the object is closed before its place is taken away"
    await handle.close()


async def test_what_a_method_raises_comes_back_as_it_is(launcher: Launcher) -> None:
    handle = await launcher.spawn("one", Counter, 5)
    with pytest.raises(RecipeError) as caught:
        await handle.call("fail", "recipe")
    assert (caught.value.message, caught.value.place, caught.value.remedy) == ("no", "there", "yes")
    assert "async def fail" in "".join(caught.value.__notes__) or "in fail" in "".join(caught.value.__notes__)
    with pytest.raises(RemoteError, match="MissingExtra: nothing is not installed"):
        await handle.call("fail", "extra")
    assert await handle.call("add", 1) == 6, "the object goes on"
    await handle.close()


async def test_what_the_constructor_raises_comes_back(launcher: Launcher) -> None:
    with pytest.raises(RecipeError, match="-1 is negative"):
        await launcher.spawn("one", Counter, -1)


async def test_a_process_of_its_own_and_its_death() -> None:
    launcher = ProcessLauncher()
    first, second = await launcher.spawn("first", Counter, 0), await launcher.spawn("second", Counter, 0)
    pids = {os.getpid(), await first.call("where"), await second.call("where")}
    assert len(pids) == 3
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        await first.call("unpicklable")
    waiting = asyncio.create_task(first.call("wait"))
    with pytest.raises(WorkerDied, match=r"first: its process \d+ was killed by SIGKILL"):
        await first.call("die")
    with pytest.raises(WorkerDied):
        await waiting
    with pytest.raises(WorkerDied):
        await first.call("add", 1)
    assert await second.call("add", 1) == 1
    await first.close()
    await second.close()


def test_settings_that_do_not_belong_together() -> None:
    with pytest.raises(ValueError, match="rollout_workers: 2"):
        ScaleSettings.model_validate("process")
    with pytest.raises(ValueError, match="'worker_cpus' belongs to ray"):
        ScaleSettings(use="process", rollout_workers=1, worker_cpus=2)


async def test_a_call_that_is_cancelled_ends_as_cancelled(launcher: Launcher) -> None:
    handle = await launcher.spawn("it", Counter, 1)
    call = asyncio.create_task(handle.call("wait"))
    while not await handle.call("waiting"):
        pass
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await handle.call("add", 1) == 2, "the object lives on"


async def test_a_method_that_awaits_what_it_cancelled_has_failed(launcher: Launcher) -> None:
    handle = await launcher.spawn("it", Counter, 1)
    with pytest.raises(RemoteError, match="had been cancelled"):
        await handle.call("trip")
    assert await handle.call("add", 1) == 2
