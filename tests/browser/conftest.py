"""What tests of the browser share: the site, and a tool that is open on a page of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from agentrl.tools.browser.launching import find_chromium
from agentrl.tools.browser.tool import Web
from agentrl.types.errors import AgentRLError
from agentrl.types.task import Task
from tests.browser.site import site

Opens = Callable[..., Awaitable[Web]]


@pytest.fixture(autouse=True)
def chromium() -> None:
    try:
        find_chromium()
    except AgentRLError as error:
        pytest.skip(error.message)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with site() as found:
        yield found


@pytest.fixture
async def web(address: str) -> AsyncIterator[Opens]:
    """Opens the tool on a page of the site."""
    async with AsyncExitStack() as stack:

        async def opens(path: str = "/", **settings: Any) -> Web:
            tool = Web(url=address + path, **settings)
            stack.push_async_callback(tool.close)
            await tool.open(Task.of("t", "Look."), None)
            return tool

        yield opens
