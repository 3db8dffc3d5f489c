"""Fixtures for tests of screens: one event loop, and with it one X server and one Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.tools.builtin.gui.warm import WARM
from tests.one_loop import share_loop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A desktop belongs to an event loop, as does a driver of Chromium."""
    share_loop(items, Path(__file__).parent)


@pytest_asyncio.fixture(autouse=True, scope="session", loop_scope="session")
async def desktops() -> AsyncIterator[None]:
    """Ends the desktops that wait for another test."""
    yield
    await WARM.close()
