"""recipes/grounding: screenshots of real pages, boxes that a click hits, and each term of the reward apart."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.rewards.functions.gui import gui_format, gui_point, gui_success, gui_text, gui_type
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.sound import played

RECIPE = Path(__file__).parents[2] / "recipes" / "grounding"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
PAGES = 16
there = (
    Path("/usr/share/doc/python3.11/html").is_dir()
    and Path("/usr/share/doc/sqlite3/index.html").is_file()
    and importlib.util.find_spec("miniwob") is not None
    and importlib.util.find_spec("playwright") is not None
    and bool(shutil.which("chromium-headless-shell") or shutil.which("chromium"))
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not there, reason="Chromium, python3.11-doc, sqlite3-doc or miniwob is not installed"),
]


@functools.cache
def tasks(eyes: bool = True) -> list[Task]:
    steps = load("./task.py:steps")
    return [task for held in (False, True) for task in steps(n=10_000, held_out=held, pages=PAGES, eyes=eyes)]


@pytest.mark.parametrize("script", ["oracle", "random", "junk"])
def test_each_term_is_apart_and_junk_is_nothing(tmp_path: Path, script: str) -> None:
    tasks()  # the screenshots
    episodes = [*played(RECIPE, 40, script, tmp_path / "run", f"tasks.args.pages={PAGES}").whole_episodes()]
    assert {episode.status for episode in episodes} == {"done"}
    rewards = {episode.reward for episode in episodes}
    if script == "random":
        assert len(rewards) > 1
        assert max(Counter(episode.reward for episode in episodes)) <= 1.0
    else:
        assert rewards == {1.0 if script == "oracle" else 0.0}


def test_an_empty_episode_is_nothing() -> None:
    task = tasks()[0]
    empty = Episode(id="e", group_id="g", task=task, status="done")
    for term in (gui_format, gui_type, gui_point, gui_text, gui_success):
        assert term(task, empty) == 0.0


def test_all_kinds_of_actions_are_there_and_pages_are_on_one_side() -> None:
    kinds = Counter(task.data["actions"][0]["type"] for task in tasks())
    assert set(kinds) == {"left_click", "type", "scroll"}
    held = {task.id for task in load("./task.py:steps")(n=10_000, held_out=True, pages=PAGES)}
    sides: dict[str, set[bool]] = {}
    for task in tasks():
        sides.setdefault(task.id.rsplit("/", 2)[0], set()).add(task.id in held)
    assert all(len(side) == 1 for side in sides.values())
    assert len({task.id for task in tasks()}) == len(tasks())
    assert tasks() == [*load("./task.py:steps")(n=10_000, pages=PAGES), *tasks()[len(tasks()) - len(held) :]]


def test_the_boxes_are_on_the_screen_and_unambiguous() -> None:
    for task in tasks():
        action, (width, height) = task.data["actions"][0], task.data["size"]
        if "box" in action:
            left, top, right, bottom = action["box"]
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height


def test_without_eyes_the_elements_are_listed_with_their_boxes() -> None:
    for task in tasks(eyes=False):
        said = task.instruction[0]["content"]
        assert isinstance(said, str)
        if "box" in task.data["actions"][0]:
            assert str(task.data["actions"][0]["box"]) in said


async def test_a_click_on_the_middle_of_the_box_arrives_where_it_should() -> None:
    """In a browser of its own: the page is opened again, and says what was clicked at that point."""
    from agentrl.tools.builtin.web.launching import Launch, open_context

    pages = load("./pages.py:_roots")()
    site = load_object("agentrl.tools.builtin.web.site:Site", RECIPE)(
        {host: load("./pages.py:_files")(root) for host, root in pages.items()}
    )
    clicks = [task for task in tasks() if task.data["actions"][0]["type"] == "left_click" and "/0/" in task.id][:12]
    clicks = [task for task in clicks if not task.id.startswith("miniwob")]
    assert clicks
    async with await open_context(Launch(flags=(site.flag,)), viewport=[1024, 768]) as page:
        for task in clicks:
            await page.do("goto", url=f"http://{task.id.rsplit('/', 2)[0]}")
            left, top, right, bottom = task.data["actions"][0]["box"]
            script = (
                "() => { window.hit = ''; addEventListener('click', event => { event.preventDefault();"
                " window.hit = event.target.closest('a, button, input, [onclick]')?.textContent ?? '?' }, true) }"
            )
            await page.evaluate(script)
            await page.do("mouse_click", x=(left + right) / 2, y=(top + bottom) / 2)
            hit = " ".join((await page.evaluate("window.hit")).split())
            assert hit in task.instruction[0]["content"][-1]["text"], task.id
    site.close()
    await asyncio.sleep(0)
