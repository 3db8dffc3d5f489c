"""Desktops for tests, and why one may be missing."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from agentrl.tools.base import ToolResult
from agentrl.tools.builtin.gui.desktop import missing_program
from agentrl.tools.builtin.gui.gui import Gui
from agentrl.types.task import Task

needs_desktop = pytest.mark.skipif(
    missing_program(elements=True) is not None or shutil.which("mousepad") is None,
    reason="needs Xvfb, openbox, dbus-daemon and mousepad (sandboxes/desktop/packages.txt)",
)


async def opened(task: Task | None = None, **settings: Any) -> Gui:
    """A tool on this machine whose program runs. It settles sooner than in its limit, unless the machine is slow."""
    gui = Gui(**{"app": "mousepad note.txt", "where": "host", "settle_s": 60.0, "start_s": 200.0, **settings})
    await gui.open(task or Task.of("t", "Do it."), None)
    return gui


async def act(gui: Gui, action: str, **arguments: Any) -> ToolResult:
    """One action in the form `computer`, arguments unchecked."""
    result: ToolResult = await gui.tools()[0].call({"action": action, **arguments})
    return result
