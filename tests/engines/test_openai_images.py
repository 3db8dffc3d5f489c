"""Images over an OpenAI-compatible API: what is sent, in which message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.parts.image import data_url
from tests.images import BLUE, RED

from .http_server import serving, status
from .test_openai import settings

CODE = """
from agentrl import Environment, Task, ToolResult, tool
from tests.images import BLUE, RED

def tasks():
    yield Task.of("t", [{"role": "user", "content": ["What is it?", {"type": "image", "image": RED}]}])

class Screen(Environment):
    @tool
    def look(self) -> ToolResult:
        "The screen."
        return ToolResult("Now:", images=[BLUE])

def right(episode):
    return float(episode.answer == "blue")
"""
RECIPE = """
name: screen
tasks: ./task.py:tasks
agent: {max_turns: 4, format: hermes}
tools: [./task.py:Screen]
rewards: {right: ./task.py:right}
"""
TEXT_CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.fixture
def screen(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


class VisionInputs:
    """Looks twice at once, then says what it saw; remembers what it was sent."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []

    async def __call__(self, path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "clever"}]}
        self.asked.append(body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "<answer>blue</answer>"}
        if len(self.asked) == 1 and "tools" in body:
            calls = [{"id": f"c{k}", "type": "function", "function": {"name": "look"}} for k in range(2)]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        elif len(self.asked) == 1:
            message["content"] = TEXT_CALL
        return {"choices": [{"message": message, "finish_reason": "stop"}]}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


async def played(screen: Path, api: Any, *more: str) -> Path:
    async with serving(api) as url:
        return (await asyncio.to_thread(rollout, screen, 1, overrides=settings(url, *more), out=screen / "run")).path


async def test_images_of_results_go_behind_all_results_where_tools_are_native(screen: Path) -> None:
    api = VisionInputs()
    path = await played(screen, api)
    opening, said, *results, shown = api.asked[-1]
    assert opening == {"role": "user", "content": [text("What is it?"), image(RED)]}
    assert [call["id"] for call in said["tool_calls"]] == ["c0", "c1"]
    assert results == [{"role": "tool", "tool_call_id": id, "content": "Now:[an image, below]"} for id in ("c0", "c1")]
    line = text("Images of the result of look:\n")
    assert shown == {"role": "user", "content": [line, image(BLUE), line, image(BLUE)]}
    with RunDir.read(path) as run:
        (episode,) = run.episodes()
    assert episode.reward == 1.0
    assert episode.trainable is False
    assert check(path).ok
    assert "data:image" not in json.dumps([episode.prompt, episode.task.instruction])


async def test_an_api_is_shown_the_last_images_alone(screen: Path) -> None:
    api = VisionInputs()
    path = await played(screen, api, "agent.history={last_images: 1}")
    opening, _, *results, shown = api.asked[-1]
    assert opening == {"role": "user", "content": [text("What is it?"), image(RED)]}  # of the task: it stays
    assert [result["content"] for result in results] == ["Now:\n[an image, no longer shown]", "Now:[an image, below]"]
    assert shown == {"role": "user", "content": [text("Images of the result of look:\n"), image(BLUE)]}
    assert check(path).ok


async def test_images_stand_where_they_are_where_tools_are_text(screen: Path) -> None:
    api = VisionInputs()
    await played(screen, api, "engine.native_tools=false")
    assert api.asked[-1][1]["content"] == [text("What is it?"), image(RED)]
    assert api.asked[-1][-1] == {
        "role": "user",
        "content": [text("<tool_response>\nNow:"), image(BLUE), text("\n</tool_response>")],
    }


async def test_a_model_that_does_not_see_refuses_in_its_words(screen: Path) -> None:
    async def blind(path: str, body: Any) -> Any:
        return {"data": []} if path == "/v1/models" else status(400, "image_url is not supported by this model")

    path = await played(screen, blind)
    with RunDir.read(path) as run:
        (episode,) = run.episodes()
    assert episode.status == "infra_error"
    assert episode.error is not None
    assert "image_url is not supported by this model" in episode.error.message
