"""A scripted episode of the web tool, looked at: `show` names images and points, the page marks them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.tools.builtin.web.launching import open_context
from tests.command import agentrl
from tests.waiting import MARKS

pytestmark = pytest.mark.slow

RECIPE = """
name: looking
tasks: {{source: ./script.py:tasks}}
tools:
  - web: {{url: "{address}/pages/shop.html", screenshots: true}}
scripts: {{shopper: ./script.py:shopper}}
"""

SCRIPT = """
import re
from agentrl import Say, Task

def tasks():
    yield Task.of("t", "Look for tea.")

def shopper(task, rng, messages):
    seen = yield Say(calls=[("screenshot", {})])
    seen = yield Say(calls=[("open", {"url": "/pages/shop.html"})])
    box = int(re.search(r'\\[(\\d+)\\] (searchbox|textbox)', seen[-1]["content"][0]["text"])[1])
    seen = yield Say(calls=[("type", {"id": box, "text": "tea"})])
    button = int(re.search(r'\\[(\\d+)\\] button', seen[-1]["content"][0]["text"])[1])
    yield Say(calls=[("click", {"id": button})])
    yield Say("Done.")
"""


async def test_a_scripted_episode_can_be_looked_at(address: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(address=address))
    (tmp_path / "script.py").write_text(SCRIPT)

    async def run(*arguments: str) -> str:
        return (await asyncio.to_thread(agentrl, *arguments, cwd=tmp_path)).stdout

    await run("rollout", "recipe.yaml", "--n", "1", "--script", "shopper", "--out", "run")
    with RunDir.read(tmp_path / "run") as stored:
        (episode,) = stored.episodes()
    typed, clicked = (call.points for turn in episode.turns for call in turn.calls if call.points)
    shown = await run("show", "run", episode.id)
    assert shown.count("[image 1024x768 png") == 4
    for x, y in (*typed, *clicked):
        assert f"at {x:g}, {y:g}" in shown
    await run("view", "run", "--export", "page.html")
    async with await open_context() as page:
        await page.do("goto", url=f"{(tmp_path / 'page.html').as_uri()}#/run/run/episode/{quote(episode.id, safe='')}")
        assert await page.evaluate(MARKS) == [0, 1, 1, 0]
