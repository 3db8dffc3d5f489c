"""Idle desktops of the `gui` tool, and arguments that it refuses. No desktop is started."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.tools.builtin.gui.desktop import Desktop
from agentrl.tools.builtin.gui.gui import Gui
from agentrl.tools.builtin.gui.link import SandboxLink
from agentrl.tools.builtin.gui.scale import Scale
from agentrl.tools.builtin.gui.screen import ScreenLost
from agentrl.tools.builtin.gui.styles import functions
from agentrl.tools.builtin.gui.warm import Recycling, WarmDesktops
from agentrl.types.errors import RecipeError, ToolError


class Fake:
    """A desktop that fails where it is told to."""

    def __init__(self, reset: BaseException | None = None, start: BaseException | None = None, **about: Any) -> None:
        self.faults, self.closed, self.broken = (reset, start), 0, False
        self.settings, self.born, self.episodes = "settings", time.monotonic(), 0
        vars(self).update(about)

    def slow(self, step_s: float) -> bool:
        return False

    async def reset(self) -> None:
        if self.faults[0] is not None:
            raise self.faults[0]

    async def start(self, command: Any, cwd: str) -> None:
        if self.faults[1] is not None:
            raise self.faults[1]

    async def close(self) -> None:
        self.closed += 1


async def taken(pool: WarmDesktops, monkeypatch: pytest.MonkeyPatch, fresh: Fake) -> Any:
    async def opened(settings: Any) -> Any:
        return fresh

    monkeypatch.setattr(Desktop, "open_on_host", opened)
    return await pool.take("settings", Recycling(), ["true"], "/")  # type: ignore[arg-type]


async def test_a_desktop_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, used = WarmDesktops(), Fake()
    await pool.give_back(used, Recycling())  # type: ignore[arg-type]
    assert await taken(pool, monkeypatch, Fake()) is used
    assert used.closed == 0


@pytest.mark.parametrize("fault", [ScreenLost("gone"), ToolError("a window stays")])
async def test_a_desktop_that_cannot_be_cleared_is_closed(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, used, fresh = WarmDesktops(), Fake(reset=fault), Fake()
    await pool.give_back(used, Recycling())  # type: ignore[arg-type]
    assert used.closed == 1
    assert await taken(pool, monkeypatch, fresh) is fresh


async def test_a_desktop_is_closed_if_the_return_is_cancelled() -> None:
    used = Fake(reset=asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await WarmDesktops().give_back(used, Recycling())  # type: ignore[arg-type]
    assert used.closed == 1


async def test_a_used_desktop_on_which_the_program_does_not_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, used, fresh = WarmDesktops(), Fake(start=ScreenLost("no window")), Fake()
    await pool.give_back(used, Recycling())  # type: ignore[arg-type]
    assert await taken(pool, monkeypatch, fresh) is fresh
    assert (used.closed, fresh.closed) == (1, 0)
    with pytest.raises(ScreenLost, match="no window"):
        await taken(pool, monkeypatch, Fake(start=ScreenLost("no window")))


@pytest.mark.parametrize("about", [{"broken": True}, {"episodes": 50}, {"born": -1e6}])
async def test_a_worn_desktop_does_not_come_back(about: dict[str, Any]) -> None:
    pool, used = WarmDesktops(), Fake(**about)
    await pool.give_back(used, Recycling())  # type: ignore[arg-type]
    assert used.closed == 1
    kept = Fake()
    await pool.give_back(kept, Recycling())  # type: ignore[arg-type]
    await pool.close()
    assert kept.closed == 1


def test_recycling_has_three_limits() -> None:
    with pytest.raises(RecipeError, match="gui: recycle is") as refused:
        Gui(app="true", recycle={"hours": 2})
    assert refused.value.remedy == "its keys: age_s, episodes, step_s"


@pytest.mark.parametrize("coordinate", [None, "x", [1], [1, 2, 3], ["a", 2], [10**400, 1], [float("nan"), 1], 7])
def test_what_is_no_pair_of_numbers_is_no_coordinate(coordinate: Any) -> None:
    with pytest.raises(ToolError, match=r"a coordinate is \[x, y\], pixels from the left"):
        Scale((800, 600), (800, 600)).to_screen(coordinate)


async def test_a_function_acts_by_its_name_on_what_is_given() -> None:
    done: list[Any] = []

    async def act(name: str, given: Any) -> str:
        done.append((name, given))
        return "done"

    offered = {each.name: each for each in functions(act, "pixels", elements=True)}
    click: Any = offered["left_click"].function
    assert await click(coordinate=None, element=3) == "done"
    with pytest.raises(ToolError, match="left_click needs the argument 'coordinate'"):
        await click()
    assert done == [("left_click", {"element": 3})]


async def test_the_last_words_of_a_program_in_a_sandbox_are_the_end_of_its_errors() -> None:
    async def read(stream: str) -> bytes:
        return b"x" * 500 + b"no display" if stream == "stderr" else b""

    words = await SandboxLink(SimpleNamespace(read=read)).last_words()
    assert words.endswith("no display")
    assert len(words) == 400
