"""The page docs/images.md, executed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.engines.http_server import serving

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "images.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the page describes."""
    code, recipe = (text for _, text in re.findall(r"```(python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2])
    (tmp_path / "buttons").mkdir()
    (tmp_path / "buttons" / "task.py").write_text(code)
    (tmp_path / "buttons" / "recipe.yaml").write_text(recipe)
    return tmp_path


def test_the_oracle_clicks_and_what_it_saw_can_be_looked_at(folder: Path) -> None:
    agentrl("recipe", "check", "buttons", cwd=folder)
    agentrl("rollout", "buttons", "--n", "16", "--script", "oracle", cwd=folder)
    agentrl("rollout", "buttons", "--n", "4", "--script", "random", cwd=folder)
    run = "runs/buttons-oracle"
    with RunDir.read(folder / run) as stored:
        episodes = list(stored.episodes())
    assert {episode.reward for episode in episodes} == {1.0}
    assert {len(call.images) for e in episodes for turn in e.turns for call in turn.calls} == {1}
    calls = [call for episode in episodes for turn in episode.turns for call in turn.calls]
    assert all(call.points == [(call.arguments["x"], call.arguments["y"])] for call in calls)
    shown = agentrl("show", run, "screen0#0", cwd=folder).stdout
    assert "at 159, 119" in shown
    assert len(re.findall(r"\[image 160x120 png 0\.\d kB sha256:[0-9a-f]{12}\]", shown)) == 3
    agentrl("view", run, "--export", "b.html", cwd=folder)
    assert len(set(re.findall(r"data:image/png;base64,[^\"]+", (folder / "b.html").read_text()))) == 2 * 16
    checked = agentrl("check", run, cwd=folder)
    assert checked.returncode == 0
    assert re.search(r"ok +images +48 ok +0 failed", checked.stdout)


async def test_a_model_behind_an_api_is_shown_the_screen(folder: Path) -> None:
    asked: list[Any] = []

    async def clicks(path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": []}
        asked.append(body["messages"])
        call = {"id": "c", "type": "function", "function": {"name": "click", "arguments": '{"x": 20, "y": 20}'}}
        return {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}

    async with serving(clicks) as url:
        engine = f"engine.urls=[{url}/v1]"
        await asyncio.to_thread(agentrl, "rollout", "buttons", "--n", "1", "--set", engine, "--out", "r", cwd=folder)
    kinds = [part["type"] for part in asked[0][-1]["content"]]
    assert kinds == ["text", "image_url"]
    with RunDir.read(folder / "r") as stored:
        assert [episode.reward for episode in stored.episodes()] == [1.0]
