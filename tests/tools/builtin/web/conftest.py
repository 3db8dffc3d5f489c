"""What tests of the browser share: the site, and a tool that is open on a page of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.tools.builtin.web import launching
from agentrl.tools.builtin.web.launching import find_chromium
from agentrl.tools.builtin.web.tool import Web
from agentrl.types.errors import AgentRLError
from agentrl.types.task import Task
from tests.one_loop import share_loop
from tests.tools.builtin.web.site import site

Opens = Callable[..., Awaitable[Web]]

LONG_S = 120.0
"""For a page or an action that is to succeed: the limit only ends a hang."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A driver, and its Chromium, belongs to an event loop."""
    share_loop(items, Path(__file__).parent)


@pytest.fixture(autouse=True, scope="session")
def kept() -> Iterator[None]:
    """A driver without contexts waits for the next test, whatever runs in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "IDLE_S", 1e6)
        yield


@pytest.fixture(autouse=True)
def chromium() -> None:
    try:
        find_chromium()
    except AgentRLError as error:
        pytest.skip(error.message)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def address() -> AsyncIterator[str]:
    async with site() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def web(address: str) -> AsyncIterator[Opens]:
    """Opens the tool on a page of the site."""
    async with AsyncExitStack() as stack:

        async def opens(path: str = "/", **settings: Any) -> Web:
            tool = Web(url=address + path, **{"load_s": LONG_S, "settle_s": LONG_S, **settings})
            stack.push_async_callback(tool.close)
            await tool.open(Task.of("t", "Look."), None)
            return tool

        yield opens
