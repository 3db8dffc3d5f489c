"""A browser in a sandbox, which the programs of that sandbox can end, stop, and speak in the place of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.tools.builtin.web.client import LARGEST, BrowserEnded, BrowserLost, Driver, PageFailure
from agentrl.tools.builtin.web.inside import InsideDriver
from agentrl.types.errors import ToolServerEnded

pytestmark = pytest.mark.slow


class Says:
    """A process of a sandbox that writes one thing, again and again."""

    def __init__(self, data: bytes) -> None:
        self.data, self.read_bytes, self.killed = data, 0, asyncio.Event()

    async def write(self, data: bytes) -> None: ...

    async def read(self, stream: str, limit: int = 0) -> bytes:
        if stream == "stderr" or self.killed.is_set():
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self.read_bytes += len(self.data)
        return self.data

    async def kill(self) -> None:
        self.killed.set()


def raw(text: bytes) -> bytes:
    """A frame whose message is no JSON, or other JSON."""
    return len(text).to_bytes(4, "big") + bytes(4) + text


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x" * (1 << 20), raw(b"[" * 100_000), raw(b"7"), raw(b'{"id": [1]}'), raw(b'{"id": "1"}'), raw(b"\xff"),
        b"Traceback (most recent call last):\n", bytes(7), LARGEST.to_bytes(4, "big") * 2,
    ],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
async def test_a_driver_that_ends_floods_or_talks_nonsense_may_be_the_agents_doing(data: bytes) -> None:
    process: Any = Says(data)
    inside = InsideDriver(process)
    with pytest.raises(BrowserEnded):
        await inside.driver.request("where")
    assert issubclass(BrowserEnded, ToolServerEnded)
    assert process.read_bytes <= 2 * LARGEST
    await inside.close()


@pytest.mark.parametrize(("inside", "raised"), [(True, BrowserEnded), (False, BrowserLost)])
async def test_one_of_this_machine_is_no_agents_own(inside: bool, raised: type[BrowserLost]) -> None:
    async def send(line: bytes) -> None: ...

    driver = Driver(send, lambda: None, lambda: "", inside=inside)
    for kind in ("launch", "browser", "driver"):
        with pytest.raises(BrowserLost) as lost:
            driver.value({"error": kind, "message": "it crashed"})
        assert type(lost.value) is raised
    with pytest.raises(PageFailure):
        driver.value({"error": "crashed", "message": "the page"})
