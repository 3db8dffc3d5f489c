"""Images in episodes: where they come from, what is recorded of them, and what is refused."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.runner import LocalRunners
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.tools.base import Environment, Observation, Tool, ToolResult, tool
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError
from agentrl.types.parts.image import data_url
from agentrl.types.reporter import Reporter
from agentrl.types.task import Task
from tests.images import BLUE, RED, png
from tests.rollouts.world import collect, make_context, make_parts

RECIPE: dict[str, Any] = {"agent": {"format": "hermes", "max_turns": 6}}


class Screen(Environment):
    """Shows a red screen, and after the first reply a blue one."""

    async def opening(self) -> Any:
        return {"role": "user", "content": ["The screen:", {"type": "image", "image": RED}]}

    @tool
    async def look(self) -> ToolResult:
        """The screen as it is."""
        return ToolResult("Now:", images=[BLUE])

    @tool
    async def pixels(self) -> Any:
        """The same as an image of Pillow."""
        from PIL import Image

        return Image.new("RGB", (5, 4))

    @tool
    async def broken(self) -> ToolResult:
        """A file that is cut off."""
        return ToolResult("", images=[RED[:-6]])

    @tool
    async def huge(self) -> ToolResult:
        """More pixels than the limits allow."""
        return ToolResult("", images=[png(200, 100)])

    async def respond(self, reply: Any) -> Any:
        return Observation("again", images=[BLUE, RED]) if reply.text == "more" else None


def of_task() -> list[Task]:
    return [Task.of("t", [{"role": "user", "content": [{"type": "image", "image": RED}, "What is it?"]}])]


def script(*says: Say) -> Any:
    seen: list[Any] = []

    def play(task: Task, rng: Any) -> Generator[Say, list[Any], None]:
        for say in says:
            seen.extend((yield say))

    play.seen = seen  # type: ignore[attr-defined]
    return play


async def played(
    tmp_path: Path, *says: Say, engine: type[ScriptedEngine] = ScriptedEngine, **recipe: Any
) -> tuple[Episode, Any]:
    parts = make_parts(tmp_path, tools=["tests.rollouts.test_images:Screen"], **{**RECIPE, **recipe})
    policy = script(*says)
    with RunDir.create(tmp_path / "run") as run:
        context = make_context(parts, policy, engine, put_blob=run.put_blob, get_blob=run.get_blob)
        (episode,) = await collect(context, [EpisodeSpec("e", "g", of_task()[0])], run=run)
    return episode, policy


async def test_images_of_task_opening_tool_and_answer_are_blobs_of_the_run(tmp_path: Path) -> None:
    episode, policy = await played(tmp_path, Say(calls=[("look", {})]), Say("more"), Say("blue"))
    assert episode.status == "done", episode.error
    of_red, of_blue = (part["blob"] for part in (episode.prompt[0]["content"][0], episode.turns[0].calls[0].images[0]))
    red: dict[str, Any] = {"type": "image", "blob": of_red, "width": 8, "height": 6, "format": "png"}
    blue = {**red, "blob": of_blue}
    assert episode.task.instruction[0]["content"] == [red, {"type": "text", "text": "What is it?"}]
    assert [message["content"] for message in episode.prompt] == [
        [red, {"type": "text", "text": "What is it?"}],
        [{"type": "text", "text": "The screen:"}, red],
    ]
    shown = [message["content"] for turn in episode.turns for message in turn.observations]
    assert shown == [[{"type": "text", "text": "Now:"}, blue], [{"type": "text", "text": "again"}, blue, red]]
    assert policy.seen[0]["content"] == shown[0]  # scripts see the parts
    with RunDir.read(tmp_path / "run") as run:
        assert (run.get_blob(of_red), run.get_blob(of_blue)) == (RED, BLUE)
        assert run.get("e") == episode
    report = check(tmp_path / "run")
    assert report.ok, report.as_text()
    assert report.invariants["blobs"].ok == 2
    assert report.invariants["images"].ok == 1 + 2  # the episode, and its two images


async def test_a_tool_may_return_an_image_of_pillow(tmp_path: Path) -> None:
    episode, _ = await played(tmp_path, Say(calls=[("pixels", {})]), Say("done"))
    (image,) = episode.turns[0].observations[0]["content"]
    assert (image["width"], image["height"], image["format"]) == (5, 4, "png")


async def test_a_broken_or_too_large_image_of_a_tool_is_an_observation(tmp_path: Path) -> None:
    says = Say(calls=[("broken", {})]), Say(calls=[("huge", {})]), Say("done")
    episode, _ = await played(tmp_path, *says, limits={"image_pixels": 10_000})
    assert episode.status == "done"
    first, second = (turn.calls[0] for turn in episode.turns[:2])
    assert (first.outcome, second.outcome) == ("raised", "raised")
    assert "cut off or damaged" in first.result
    assert "test_images.py" in first.raised
    assert "an image has 200 x 100 pixels, and limits.image_pixels is 10000" in second.result


async def test_an_image_of_a_task_that_is_too_large_ends_its_episode(tmp_path: Path) -> None:
    episode, _ = await played(tmp_path, Say("done"), limits={"image_mb": 0.00005})
    assert episode.status == "user_error"
    assert episode.error is not None
    assert "limits.image_mb is 5e-05" in episode.error.message
    assert "raise limits.image_mb" in episode.error.message


class Blind(ScriptedEngine):
    name, sees = "blind", False


async def test_an_engine_that_takes_text_only_is_not_shown_an_image(tmp_path: Path) -> None:
    episode, _ = await played(tmp_path, Say("done"), engine=Blind)
    assert episode.status == "user_error"
    assert episode.error is not None
    assert "the engine blind takes text only: it is shown an image" in episode.error.message
    assert "engine.use: openai takes images" in episode.error.message


class Camera(Tool):
    @tool
    async def look(self) -> ToolResult:
        """A picture."""
        return ToolResult("", images=[data_url(RED)])


async def test_a_tools_image_for_an_engine_that_takes_text_only_is_no_observation(tmp_path: Path) -> None:
    """What the user has to repair is not the model's to read."""
    parts = make_parts(tmp_path, tools=["tests.rollouts.test_images:Camera"], **RECIPE)
    context = make_context(parts, script(Say(calls=[("look", {})]), Say("done")), Blind)
    (episode,) = await collect(context, [EpisodeSpec("e", "g", Task.of("t", "Look."))])
    assert (episode.status, episode.error and episode.error.kind) == ("user_error", "CannotSee")


def damaged(run: Path, change: Any) -> dict[str, list[str]]:
    """What `check` says of a run with its episode changed."""
    with RunDir.open(run) as stored:
        stored.add(change(msgspec.structs.replace(stored.get("e"), id="f")))
    return {name: each.offenders for name, each in check(run).invariants.items() if each.failed}


async def test_check_knows_placeholders_of_no_image_and_images_that_were_cut(tmp_path: Path) -> None:
    await played(tmp_path, Say(calls=[("look", {})]), Say("blue"))

    def strange(episode: Episode) -> Episode:
        first = episode.nodes[0]
        ids = [-5 if token < 0 else token for token in first.token_ids]
        return msgspec.structs.replace(
            episode, nodes=[msgspec.structs.replace(first, token_ids=ids), *episode.nodes[1:]]
        )

    assert list(damaged(tmp_path / "run", strange)) == ["images"]
    for blob in (tmp_path / "run" / "blobs").glob("*/*"):
        blob.write_bytes(blob.read_bytes()[:-3])
    problems = check(tmp_path / "run").invariants
    assert problems["blobs"].failed == 2
    assert "cut off or damaged" in problems["images"].offenders[-1]


async def test_a_run_continues_with_images_of_as_many_tokens_only(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=["tests.rollouts.test_images:Camera"], **RECIPE)
    engine, renderer = parts.scripted_engine("random")
    with RunDir.create(tmp_path / "run") as run:
        collector = Collector(parts, run, Reporter(), LocalRunners(None))
        collector.scheduler(engine, renderer)
        assert run.info["processor"] == {"use": "one_token"}
        scripts, renderer.processor = renderer.processor, cast(Any, SimpleNamespace(settings={"patch": 14}))
        collector.scheduler(engine, renderer)
        renderer.processor = scripts  # demonstrations of scripts are beside any policy
        collector.scheduler(engine, renderer)
        assert run.info["processor"] == {"patch": 14}
        renderer.processor = cast(Any, SimpleNamespace(settings={"patch": 16}))
        with pytest.raises(StoreError, match="the images of this run are tokens by {'patch': 14}, now"):
            collector.scheduler(engine, renderer)
