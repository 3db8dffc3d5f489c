"""Screens that break in the hands of a model: what it may have done is no failure of the machine for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.sandbox.frames import frame
from agentrl.tools.builtin.gui.desktop import LARGEST, MARGIN_S, Desktop, DesktopSettings, HostLink
from agentrl.tools.builtin.gui.gui import CHARACTERS, CHORDS, Gui
from agentrl.tools.builtin.gui.screen import ScreenEnded, ScreenLost
from agentrl.types.errors import ToolError, ToolServerEnded
from agentrl.types.sandbox import SandboxImageUnusable
from tests.standing import standing

OK = {"ok": True, "ended": None, "answers": True, "windows": 1}


class Said:
    """A link whose driver says what a test wants; then it is silent."""

    def __init__(self, *parts: bytes) -> None:
        self.parts, self.read = [*parts], 0

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        if not self.parts:
            await asyncio.Event().wait()
        part = self.parts[0] if len(self.parts) == 1 and len(self.parts[0]) > 1000 else self.parts.pop(0)
        self.read += len(part)
        return part

    async def last_words(self) -> str:
        return "out of ink"

    async def close(self) -> None: ...


class OnHost(Said, HostLink):
    """The same on this machine."""


def said(**fields: Any) -> bytes:
    return frame(OK | fields)


def raw(text: bytes, length: int | None = None, size: int = 0) -> bytes:
    """A frame whose message is no JSON, or other JSON, or whose head lies."""
    return (len(text) if length is None else length).to_bytes(4, "big") + size.to_bytes(4, "big") + text


def desktop(*parts: bytes, link: type[Said] = Said) -> Desktop:
    return Desktop(link(*parts), DesktopSettings(), "")


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([b""], "the desktop ended during 'settle': out of ink"),
        ([said(ended=-9)], "ended by signal 9"),
        ([said(ok=False, kind="x", error="the X server died")], "the X server died"),
        ([said(ok=False, kind="missing", error="xvfb")], "xvfb"),
        ([b"x" * (1 << 20)], "more than"),
        ([raw(b"[" * 100_000)], "no answer"),
        ([raw(b"1")], "no answer"),
        ([raw(b"{}")], "no answer"),
        ([raw(b"{}", size=(1 << 32) - 1)], "no answer"),
        ([raw(b"{}", length=(1 << 32) - 1)], "no answer"),
        ([raw(b"\xff")], "no answer"),
        ([said()[:-1]], "did not answer 'settle'"),
        ([], "did not answer 'settle'"),
    ],
)
def test_what_breaks_in_use_may_be_the_agents_doing(parts: list[bytes], why: str) -> None:
    screen = desktop(*parts)
    with pytest.raises(ScreenEnded, match=why):
        standing(screen.settle())
    assert issubclass(ScreenEnded, ToolServerEnded)
    link: Any = screen._link
    assert link.read < 2 * LARGEST


def test_one_of_this_machine_that_does_not_answer_is_the_machines() -> None:
    with pytest.raises(ScreenLost) as lost:
        standing(desktop(link=OnHost).screenshot())
    assert not isinstance(lost.value, ScreenEnded)
    assert f"within {MARGIN_S:g} s" in str(lost.value)


def test_a_request_that_was_cut_off_leaves_a_screen_that_the_agent_broke() -> None:
    screen = desktop(link=OnHost)

    async def program() -> None:
        asked = asyncio.create_task(screen.settle())
        await asyncio.sleep(1)
        asked.cancel()
        await asyncio.wait([asked])
        await screen.settle()

    with pytest.raises(ScreenEnded, match="broke earlier"):
        standing(program())


def test_a_part_is_missing_only_at_the_start() -> None:
    with pytest.raises(SandboxImageUnusable, match="has no xvfb"):
        standing(desktop(said(ok=False, kind="missing", error="xvfb")).start([], ""))


@pytest.mark.parametrize(
    ("name", "text"), [("type", "ж" * (CHARACTERS + 1)), ("key", "a " * (CHORDS + 1))], ids=["type", "key"]
)
def test_what_would_take_too_long_is_no_action(name: str, text: str) -> None:
    gui = Gui(app="xclock")
    gui._screen, gui._pointer = desktop(), (0, 0)
    with pytest.raises(ToolError, match="at most"):
        standing(gui._act(name, {"text": text}))
