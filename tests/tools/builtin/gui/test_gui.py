"""The `gui` tool on a real editor under a real X server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.tools.builtin.gui import gui as gui_module
from agentrl.tools.builtin.gui.gui import Gui
from agentrl.tools.builtin.gui.screen import ScreenLost
from agentrl.tools.builtin.gui.warm import WARM
from agentrl.tools.methods import method
from agentrl.types.errors import RecipeError, TaskError, ToolError
from agentrl.types.parts.image import image_info
from agentrl.types.task import Task
from tests.tools.builtin.gui.desks import act, needs_desktop, opened
from tests.waiting import children_of, descendants_of, running_program, stop, until, wait_for_end

pytestmark = [pytest.mark.slow, needs_desktop]

ODD = "a B~@#$%^&*()[]{}\\|<>\"'` äÖß€漢😀\nsecond line"


@pytest_asyncio.fixture(loop_scope="session")
async def gui() -> AsyncIterator[Gui]:
    tool = await opened(shows="both")
    yield tool
    await tool.close()


def saved(gui: Gui) -> str:
    return Path(gui.folder or "", "note.txt").read_text()


def server_of(gui: Gui) -> int:
    """The process id of its X server."""
    children = subprocess.run(["pgrep", "-P", str(driver_of(gui)), "Xvfb"], capture_output=True, text=True, check=True)
    return int(children.stdout)


def driver_of(gui: Gui) -> int:
    """The process id of its driver, which a guard started."""
    (driver,) = children_of(gui._screen._link._process.pid)  # type: ignore[union-attr]
    return driver


async def test_it_types_saves_and_shows(gui: Gui) -> None:
    (message,) = await gui.opening()
    first = message["content"][1]["image"]
    assert (image_info(first).width, image_info(first).height) == (1024, 768)
    shown = await act(gui, "type", text=ODD)
    assert f": {ODD!r}" in shown.text, "the list has the text"
    assert shown.images[0] != first
    await act(gui, "key", text="ctrl+s")
    assert saved(gui) == ODD
    await act(gui, "key", text="ctrl+Home shift+End Delete Delete ctrl+s")
    assert saved(gui) == "second line"


async def test_more_new_characters_than_there_are_free_keys(gui: Gui) -> None:
    text = "".join(chr(0x4E00 + k) for k in range(300))
    await act(gui, "type", text=text)
    await act(gui, "key", text="ctrl+s")
    assert saved(gui) == text


async def test_mouse_and_elements(gui: Gui) -> None:
    await gui.opening()
    clicked = await act(gui, "left_click", coordinate=[211, 162])
    assert clicked.points == ((211.0, 162.0),)
    assert "Save As..." in clicked.text, "the menu is open"
    number = next(k for k, each in enumerate(gui._listed, 1) if each.name == "Edit")
    assert "Undo" in (await act(gui, "left_click", element=number)).text
    await act(gui, "key", text="Escape Escape")
    await act(gui, "type", text="one two three")
    await act(gui, "double_click", coordinate=[205, 212 - 24 if os.getuid() else 212])
    await act(gui, "type", text="1")
    await act(gui, "key", text="ctrl+s")
    assert saved(gui) == "1 two three"
    dragged = await act(gui, "left_click_drag", start_coordinate=[400, 141], coordinate=[500, 241])
    assert dragged.points == ((400.0, 141.0), (500.0, 241.0))
    assert 'frame "' in dragged.text
    frame = next(each for each in gui._listed if each.role == "frame")
    assert frame.box[0] > 250, "the window moved with its title bar"


async def test_a_dialog_has_done_its_work_when_the_screen_is_shown() -> None:
    """GTK takes half a second to find that a name of a file is one, and shows a dialog's button pressed for 250 ms."""
    gui = await opened(shows="image")
    try:
        await act(gui, "type", text="words")
        await act(gui, "key", text="ctrl+shift+s")
        await act(gui, "type", text="other.txt")
        await act(gui, "key", text="Return")
        assert Path(gui.folder or "", "other.txt").read_text() == "words"
    finally:
        await gui.close()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("left_click", {"coordinate": [1024, 5]}, "outside the screen"),
    ("left_click", {"coordinate": [-1, 5]}, "outside the screen"),
    ("left_click", {"coordinate": [float("nan"), 5]}, "a coordinate is"),
    ("left_click", {}, "needs the argument 'coordinate'"),
    ("left_click", {"element": 99}, "there is no element 99"),
    ("key", {"text": "ctrl+Retrun"}, r"did you mean return\?"),
    ("type", {}, "needs the argument 'text'"),
]


async def test_wrong_arguments_are_observations(gui: Gui) -> None:
    for action, arguments, said in WRONG:
        with pytest.raises(ToolError, match=said):
            await act(gui, action, **arguments)
        assert (await act(gui, "screenshot")).images
    assert (await act(gui, "key", text="ctrl++")).images


async def test_scaled_screens_and_coordinates() -> None:
    for settings, coordinate in (
        ({"shown": [512, 384]}, [105, 81]),
        ({"coordinates": "thousandths"}, [206, 211]),
        ({"coordinates": "fractions"}, [0.206, 0.211]),
    ):
        gui = await opened(shows="both", **settings)
        result = await act(gui, "left_click", coordinate=coordinate)
        assert "Save As..." in result.text
        shown = image_info(result.images[0])
        assert (shown.width, shown.height) == tuple(settings.get("shown", (1024, 768)))
        assert all(0 <= place < side for place, side in zip(result.points[0], (shown.width, shown.height), strict=True))
        await gui.close()


async def test_odd_sizes() -> None:
    for size in ([40, 30], [2000, 1500]):
        gui = await opened(size=size)
        info = image_info((await act(gui, "screenshot")).images[0])
        assert [info.width, info.height] == size
        await gui.close()
    with pytest.raises(RecipeError, match=r"size is \[0, 5\]"):
        Gui("mousepad", where="host", size=[0, 5])


async def test_a_program_that_hangs_is_said_and_one_that_crashes_is_infrastructure() -> None:
    gui = await opened(shows="both", settle_s=2.0)
    (program,) = subprocess.run(
        ["pgrep", "-P", str(driver_of(gui)), "mousepad"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    stop(int(program))
    hangs = (await act(gui, "left_click", coordinate=[400, 400])).text
    assert "does not answer" in hangs
    assert "the list is not whole" in hangs
    assert "(no element)" not in hangs
    os.kill(int(program), signal.SIGKILL)
    wait_for_end(int(program))
    with pytest.raises(ScreenLost, match="signal 9"):
        await act(gui, "screenshot")
    await gui.close()


async def test_a_closed_program_is_an_observation(gui: Gui) -> None:
    await act(gui, "key", text="ctrl+q")  # the note is not saved: it asks
    number = next(k for k, each in enumerate(gui._listed, 1) if each.name == "Don't Save")
    await act(gui, "left_click", element=number)
    assert "No window is open." in (await act(gui, "type", text="x")).text


async def test_a_dead_server_is_infrastructure_and_leaves_nothing(gui: Gui) -> None:
    os.kill(server_of(gui), signal.SIGKILL)
    with pytest.raises(ScreenLost, match="ended during"):
        await act(gui, "screenshot")
    with pytest.raises(ScreenLost, match="broke earlier"):
        await act(gui, "screenshot")


async def test_screens_are_used_again_and_replaced_by_age_and_latency() -> None:
    await WARM.close()
    servers = []
    for recycle in ({}, {}, {"episodes": 2}, {}, {"step_s": 0.0}, {}, {"age_s": 0.0}, {}):
        gui = await opened(recycle={"step_s": 1e6, "age_s": 1e6, **recycle})
        servers.append(server_of(gui))
        note = Path(gui.folder or "", "note.txt")
        assert not note.exists(), "the folder is new"
        await act(gui, "type", text="x")
        await gui.close()
    await WARM.close()
    first, second, third, fourth, fifth, sixth, seventh, eighth = servers
    assert first == second, "used again"
    assert third != second, "two episodes are enough for it"
    assert fourth == third
    assert len({fourth, fifth, sixth}) == 3, "every step is too slow for the fifth, before and after it"
    assert len({sixth, seventh, eighth}) == 3, "every server is too old for the seventh, its own as well"
    alive = [pid for pid in servers if Path(f"/proc/{pid}").exists()]
    assert not alive


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RecipeError, match=r"Xvfb is not installed\n.*apt-get install .*xvfb"):
        Gui("mousepad", where="host")


async def test_a_program_that_is_missing_or_ends_at_once() -> None:
    with pytest.raises(RecipeError, match=r"nosuch is not installed\n.*apt-get install .* nosuch"):
        await opened(app="nosuch")
    with pytest.raises(ScreenLost, match="false ended with 1 at once"):
        await opened(app="false")
    with pytest.raises(ScreenLost, match="sleep showed nothing within 1 s"):
        await opened(app="sleep 50", start_s=1)
    for field in ("file", "name.first", "name[0]"):
        with pytest.raises(TaskError, match="no field for app"):
            await opened(Task.of("t", "?", name=None), app=f"mousepad {{{field}}}")
    with pytest.raises(RecipeError, match="No closing quotation"):
        Gui("mousepad 'note")


def test_everything_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, signal\n"
        "from tests.tools.builtin.gui.desks import opened\n"
        "async def main():\n"
        "    gui = await opened()\n"
        "    print(gui._screen._link._process.pid, flush=True)\n"
        "    signal.pause()\n"
        "asyncio.run(main())\n"
    )
    with running_program([sys.executable, "-c", code]) as program:
        guard = int(program.stdout.readline())  # type: ignore[union-attr]
        inside = [guard, *descendants_of(guard)]
        assert len(inside) >= 5, "guard, driver, server, window manager, program"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))


def test_the_styles() -> None:
    names = {style: [each.name for each in Gui("x", actions=style).tools()] for style in gui_module.STYLES}
    assert names["computer"] == ["computer"]
    assert names["computer_use"] == ["computer_use"]
    assert names["gui_r1"] == ["act"]
    assert set(names["functions"]) >= {"screenshot", "left_click", "type", "key", "scroll", "wait", "done"}
    with pytest.raises(RecipeError, match="did you mean 'computer'"):
        Gui("x", actions="computr")


async def test_the_form_of_qwen() -> None:
    gui = await opened(actions="computer_use", shows="elements")
    tool = method(gui, *gui.tools())
    await tool.call({"action": "mouse_move", "coordinate": [500, 400]})
    await tool.call({"action": "type", "text": "one"})
    await tool.call({"action": "key", "keys": ["ctrl", "s"]})
    assert saved(gui) == "one"
    assert (await tool.call({"action": "scroll", "coordinate": [500, 400], "pixels": -300})).points == ((500.0, 400.0),)
    ended = await tool.call({"action": "terminate", "status": "success"})
    assert (ended.done, ended.answer) == (True, "success")
    for wrong, said in (
        ({"action": "fly"}, "should be one of"),
        ({"action": "key"}, "needs the argument 'keys'"),
        ({"action": "scroll", "coordinate": [500, 400]}, "needs the argument 'pixels'"),
    ):
        with pytest.raises(ToolError, match=said):
            await tool.call(wrong)
    assert (await tool.call({"action": "wait", "time": 0})).text
    await gui.close()


async def test_many_start_at_once() -> None:
    """The window manager says that it is there a while before it takes windows: with work for every core, a program
    that starts in between would never be seen."""
    guis = await asyncio.gather(*(opened() for _ in range(4)))
    await asyncio.gather(*(act(gui, "type", text="x") for gui in guis))
    await asyncio.gather(*(act(gui, "key", text="ctrl+s") for gui in guis))
    assert [saved(gui) for gui in guis] == ["x"] * 4
    for gui in guis:
        await gui.close()
    await WARM.close()


async def test_tasks_of_their_own_class() -> None:
    class Mine(Gui):
        def prepare(self, task: Task) -> None:
            Path(self.folder or "", task.data["file"]).write_text("before")

    gui = Mine("mousepad {file}", where="host", shows="elements")
    await gui.open(Task.of("t", "x", file="a b.txt"), None)
    assert "'before'" in (await act(gui, "screenshot")).text
    assert gui.state_key() == (await act(gui, "screenshot") and gui.state_key())
    await gui.close()
