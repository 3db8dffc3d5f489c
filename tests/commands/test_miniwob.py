"""recipes/miniwob in a real Chromium: solvers, what is not solved, splits, in-place starts, both ways to observe."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from agentrl.tools.builtin.web import launching
from agentrl.types.errors import InfraError, RecipeError, ToolError
from agentrl.types.paths import data_path
from agentrl.types.task import Task
from tests.command import agentrl, sets
from tests.sound import assert_sound, played
from tests.waiting import MARKS

RECIPE = data_path("recipes", "miniwob")
tasks = load_object("./task.py:tasks", RECIPE)
MiniWob = load_object("./task.py:MiniWob", RECIPE)
FAMILIES = load_object("./families.py:FAMILIES", RECIPE)
HELD_OUT = load_object("./task.py:HELD_OUT", RECIPE)
pages = load_object("./pages.py:pages", RECIPE)

Alone = Callable[[Any], Any]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("miniwob") is None or shutil.which("chromium-headless-shell") is None,
    reason="miniwob==1.1.0 or chromium-headless-shell is not installed: make setup, make test",
)
SLICE = [
    "click-button", "click-checkboxes", "click-color", "click-test-2", "choose-list", "drag-box", "email-inbox-reply",
    "enter-text", "find-word", "focus-text-2", "form-sequence-2", "login-user", "read-table", "use-spinner",
]  # fmt: skip
"""A family or two of each kind; `make test-envs` plays all."""


@pytest.mark.slow
@pytest.mark.family("environments")
@pytest.mark.parametrize("script", ["oracle", "empty", "junk"])
def test_the_oracle_solves_all_and_who_does_nothing_solves_none(tmp_path: Path, script: str) -> None:
    seeds = 2 if script == "oracle" else 1
    chosen = f"tasks.args={json.dumps({'families': SLICE, 'seeds': seeds})}"
    rewards: dict[str, set[float | None]] = defaultdict(set)
    for row in played(RECIPE, seeds * len(SLICE), script, tmp_path / "run", chosen).episodes:
        rewards[row.task_id.split("/")[0]].add(row.reward)
    assert rewards == {family: {1.0 if script == "oracle" else -1.0} for family in SLICE}


@pytest.mark.timeout(3600)
@pytest.mark.family("envs")
def test_the_oracle_solves_ten_seeds_of_every_solved_family(tmp_path: Path) -> None:
    chosen = ["--set", "tasks.args.seeds=10"]
    agentrl(
        "rollout", "miniwob", "--n", "1000", "--script", "oracle", "--out", "run", *chosen, cwd=tmp_path, timeout=1800
    )
    with RunDir.read(tmp_path / "run") as run:
        missed = [row.task_id for row in run.rows() if row.reward != 1.0]
    assert missed == []


def test_every_page_of_the_package_is_in_the_table_with_a_solver_or_a_reason() -> None:
    there = {path.stem for path in load_object("./pages.py:folder", RECIPE)().glob("*.html")}
    assert set(FAMILIES) == there
    assert sum(bool(family.solver) for family in FAMILIES.values()) >= 60
    assert all(bool(family.solver) != bool(family.why) for family in FAMILIES.values())
    for family in FAMILIES.values():
        if family.solver:
            file, function = family.solver.split(".")
            assert callable(load_object(f"./oracle/{file}.py:{function}", RECIPE))


def test_splits_share_no_seed_and_no_family() -> None:
    train = {task.id for task in tasks("click-test", "train", 512)}
    held_out = {task.id for task in tasks("click-test", "held-out", 512)}
    assert len(train) == len(held_out) == 512
    assert not train & held_out
    families = {task.data["family"] for task in tasks("held-in", seeds=1)}
    assert families.isdisjoint(HELD_OUT)
    assert {task.data["family"] for task in tasks("held-out", seeds=1)} == set(HELD_OUT)
    with pytest.raises(RecipeError, match="no page"):
        list(tasks(["click-nothing"]))


async def opened(family: str, seed: int, observe: str = "dom") -> Any:
    env = MiniWob(observe)
    await env.open(Task.of("t", [], family=family, seed=seed), None)
    return env


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    """Runs a coroutine, and ends its pages. One event loop, and so one browser, for all tests of this file."""

    async def run(coroutine: Any) -> Any:
        try:
            return await coroutine
        finally:
            await pages().close()

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr(launching, "IDLE_S", 1e6)
        yield lambda coroutine: runner.run(run(coroutine))
    launching._drop_closed_loops()


@pytest.mark.slow
@pytest.mark.family("environments")
@pytest.mark.parametrize("family", ["click-button", "use-slider"])
def test_a_page_that_was_used_starts_like_a_fresh_one(family: str, alone: Alone) -> None:
    async def keys() -> list[str]:
        fresh = await opened(family, 7)
        found = [fresh.state_key()]
        await fresh.left_click(20, 60)
        await fresh.left_click(60, 90)
        await fresh.close()
        again = await opened(family, 7)
        assert again.page is fresh.page
        found.append(again.state_key())
        await again.close()
        other = await opened(family, 8)
        return [*found, other.state_key()]

    fresh, again, other = alone(keys())
    assert fresh == again != other


async def play_out(family: str, seed: int) -> None:
    """An episode that ends: by the oracle, or else after some clicks and a drag."""
    env, rng = await opened(family, seed), random.Random(seed)
    if FAMILIES[family].solver:
        turns = FAMILIES[family].play([{"content": await env.opening()}], rng)
        with suppress(StopIteration):
            say = next(turns)
            while True:
                seen = [await getattr(env, name)(**given) for name, given in say.calls]
                if env.info["done"]:
                    break
                say = turns.send([{"content": each.text} for each in seen])
    else:
        for _ in range(8):
            if not env.info["done"]:
                await env.left_click(rng.randrange(160), rng.randrange(50, 210))
        if not env.info["done"]:
            await env.left_click_drag([(20, 100), (140, 160)])
    await env.close()


@pytest.mark.timeout(3600)
@pytest.mark.family("envs")
def test_every_family_that_starts_in_place_starts_like_a_fresh_page(alone: Alone) -> None:
    async def different() -> list[str]:
        found = []
        for family in (name for name in FAMILIES if FAMILIES[name].in_place):
            await pages().close()
            fresh = await opened(family, 5)
            key = fresh.state_key()
            await fresh.close()
            await play_out(family, 15)
            again = await opened(family, 5)
            found += [family] if again.state_key() != key or again.page is not fresh.page else []
            await again.close()
        return found

    assert alone(different()) == []


@pytest.mark.slow
@pytest.mark.family("environments")
def test_an_episode_in_place_is_scrolled_back(alone: Alone) -> None:
    async def scrolled() -> list[Any]:
        env = await opened("highlight-text", 7)
        before = env.state_key()
        await env._evaluate("document.body.style.width = '400px'; scrollTo(40, 0)")
        found = [await env._evaluate("scrollX")]
        await env.close()
        again = await opened("highlight-text", 7)
        return [*found, again.page is env.page, again.state_key() == before]

    assert alone(scrolled()) == [40, True, True]


@pytest.mark.slow
@pytest.mark.family("environments")
def test_pixels_are_clicked_by_coordinates(alone: Alone) -> None:
    async def play() -> Any:
        env = await opened("click-test-2", 3, "pixels")
        shown = await env.opening()
        button = next(line for line in env.state["lines"] if line[5] == "ONE")
        x, y, width, height = button[6]
        names = [function.__name__ for function in env.tools()]
        return shown, names, await env.left_click(x + width // 2, y + height // 2), env.info

    shown, names, result, info = alone(play())
    assert len(result.points) == 1
    assert shown["content"][0] == "Click button ONE."
    assert shown["content"][1]["image"][:4] == b"\x89PNG"
    assert "left_click" in names
    assert "click" not in names
    assert result.done
    assert info == {"raw": 1.0, "done": True}


@pytest.mark.slow
@pytest.mark.family("environments")
def test_an_episode_with_screenshots_can_be_looked_at(tmp_path: Path, alone: Alone) -> None:
    """The oracle types twice and clicks: `show` names images and points, the page marks each on its screenshot."""
    chosen = ["--set", "tasks.args={families: login-user, seeds: 1}", "--set", "tools.0.observe=both"]
    agentrl("rollout", "miniwob", "--n", "1", "--script", "oracle", "--out", "run", *chosen, cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        (episode,) = run.episodes()
    assert episode.reward == 1.0
    points = [call.points for turn in episode.turns for call in turn.calls]
    assert [len(each) for each in points] == [1, 1, 1]
    shown = agentrl("show", "run", episode.id, cwd=tmp_path).stdout
    assert shown.count("[image 160x210 png") == 3
    x, y = points[0][0]
    assert f"at {x:g}, {y:g}" in shown
    agentrl("view", "run", "--export", "page.html", cwd=tmp_path)

    async def marks() -> Any:
        async with await launching.open_context() as page:
            place = f"#/run/run/episode/{quote(episode.id, safe='')}"
            await page.do("goto", url=(tmp_path / "page.html").as_uri() + place)
            return await page.evaluate(MARKS)

    assert alone(marks()) == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.family("environments")
def test_a_browser_that_is_killed_is_no_answer_of_the_policy(alone: Alone) -> None:
    async def play() -> Any:
        env = await opened("click-test-2", 3)
        idle = await opened("click-test-2", 4)
        await idle.close()
        loop = asyncio.get_running_loop()  # others, of earlier tests, may be closed and not dropped yet
        (driver,) = [process.pid for (of, _), (_, process) in launching._drivers.items() if of is loop]
        subprocess.run(["pkill", "-9", "-P", str(driver)], check=True)  # Playwright's, whose end is Chromium's
        with pytest.raises(InfraError):
            await env.left_click(10, 60)
        await env.close()
        while True:  # as the rollout tries again; the end of a browser is not known at once
            with suppress(InfraError):
                return (await opened("click-test-2", 3)).state["utterance"]
            await asyncio.sleep(0)

    assert alone(play()) == "Click button ONE."


@pytest.mark.slow
@pytest.mark.family("environments")
def test_what_does_not_exist_is_an_observation(alone: Alone) -> None:
    async def play() -> Any:
        env = await opened("click-test-2", 3)
        for wrong in (env.key("Nonsense"), env.click(99), env.select(2, ["x"]), env.left_click_drag([])):
            with pytest.raises(ToolError):
                await wrong
        await env.left_click(10_000, -5)  # outside: nothing is hit
        return await env.click(next(line[1] for line in env.state["lines"] if line[5] == "ONE")), env.info

    result, info = alone(play())
    assert result.done
    assert info["raw"] == 1.0


@pytest.mark.slow
@pytest.mark.family("environments")
def test_pages_that_wait_are_few_and_one_loads_another_family(alone: Alone) -> None:
    async def play() -> Any:
        envs = [await opened(family, 1) for family in SLICE[1:9]]
        for env in envs:
            await env.close()
        first = envs[0].page
        again = await opened("click-button", 7)  # none of the family waits
        key = again.state_key()
        taken = again.page is first
        await again.close()
        assert len(pages().idle) == 8
        await pages().close()
        return taken, key, (await opened("click-button", 7)).state_key()

    taken, key, fresh = alone(play())
    assert taken
    assert key == fresh


@pytest.mark.slow
@pytest.mark.family("environments")
def test_a_tiny_policy_trains_on_clicks_by_text(tmp_path: Path) -> None:
    small = ["train.iterations=1", "train.groups=2", "train.group_size=2", "warm_start.episodes=8",
             "warm_start.steps=4", "eval.episodes=4", "model.scratch.hidden=16"]  # fmt: skip
    agentrl("train", str(RECIPE / "click.yaml"), "--out", "run", *sets(*small), cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        episodes = list(run.episodes(split="train"))
        held_out = list(run.episodes(split="eval"))
    assert len(episodes) == 4
    assert {episode.task.data["seed"] < 1_000_000 for episode in episodes} == {True}
    assert {episode.task.data["seed"] >= 1_000_000 for episode in held_out} == {True}
    assert str(episodes[0].prompt[-1]["content"]).split("\n")[1:] == ["3 text", "4 text", "5 text"]
    assert_sound(tmp_path / "run")
