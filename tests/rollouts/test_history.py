"""`agent.history`: earlier turns as the chat template renders them, drift by its kind, and the last images alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store import RunDir, check
from agentrl.tools.base import Environment, ToolResult, tool
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.parts.content import text_of
from agentrl.types.sample import training_samples
from agentrl.types.task import Task
from tests.images import png
from tests.rollouts.world import collect, make_parts, specs

THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


class Forgets(ByteTokenizer):
    """Drops the thoughts of earlier replies."""

    def render(self, messages: list[Any], tools: Any, add_generation_prompt: bool) -> str:
        shown = [{**m, "content": THOUGHT.sub("", m["content"])} if m["role"] == "assistant" else m for m in messages]
        return super().render(shown, tools, add_generation_prompt)


def thinker(task: Any, rng: Any) -> Any:
    yield Say("<think>first</think>", calls=[("echo", {"text": "x"})])
    yield Say("<think>second</think>", calls=[("crash", {})])
    yield Say("<think>third</think>the end")


async def played(tmp_path: Path, history: str, tokenizer: ByteTokenizer) -> tuple[Episode, Any]:
    parts = make_parts(tmp_path, agent={"history": history})
    renderer = parts.renderer(tokenizer)
    context = replace(parts.context(ScriptedEngine(thinker, renderer, renderer.parser), renderer, None))
    with RunDir.create(tmp_path / f"{history}-{type(tokenizer).__name__}") as run:
        (episode,) = await collect(context, specs(1), run=run)
    assert check(run.path).ok
    return episode, renderer


def prompts(episode: Episode) -> list[list[int]]:
    return [[t for k in episode.path(turn.node)[:-1] for t in episode.nodes[k].token_ids] for turn in episode.turns]


async def test_prompts_are_what_the_template_renders(tmp_path: Path) -> None:
    episode, renderer = await played(tmp_path, "as_template", Forgets())
    messages = [*episode.prompt]
    for turn, prompt in zip(episode.turns, prompts(episode), strict=True):
        assert prompt == renderer.start(messages)
        messages += [{"role": "assistant", "content": turn.text}, *turn.observations]
    assert "first" not in ByteTokenizer().decode(prompts(episode)[2])
    assert {drift.kind for drift in episode.drift} == {"template"}
    assert [drift.turn for drift in episode.drift] == [1, 2]
    assert episode.branches == []
    rows = training_samples(episode, [1.0] * 3)
    assert sum(int(row.loss_mask.sum()) for row in rows) == episode.sampled_tokens
    told = [row.token_ids.tolist() for row in SupervisedConversation.of(episode).samples(renderer)]
    assert told == [row.token_ids.tolist() for row in rows]


async def test_where_the_template_keeps_everything_there_is_one_branch(tmp_path: Path) -> None:
    whole, _ = await played(tmp_path, "as_template", ByteTokenizer())
    sampled, _ = await played(tmp_path, "as_sampled", ByteTokenizer())
    assert (whole.drift, len(whole.leaves())) == ([], 1)
    assert whole.nodes == sampled.nodes


async def test_what_was_sampled_stays_by_default(tmp_path: Path) -> None:
    episode, _ = await played(tmp_path, "as_sampled", Forgets())
    assert (episode.drift, len(episode.leaves())) == ([], 1)
    assert "first" in ByteTokenizer().decode(prompts(episode)[2])


@pytest.mark.parametrize("history", ["as_told", {"last_images": 0}, {"images": 2}])
def test_other_histories_are_refused(tmp_path: Path, history: Any) -> None:
    with pytest.raises((RecipeError, ValueError), match="history"):
        make_parts(tmp_path, agent={"history": history})


class Opens(ByteTokenizer):
    """A template whose generation prompt opens the thought, and that keeps earlier thoughts."""

    def render(self, messages: Any, tools: Any, add_generation_prompt: bool) -> str:
        return super().render(messages, tools, add_generation_prompt) + "<think>" * add_generation_prompt


class Grows(Environment):
    """Offers more after the first call."""

    def open(self, task: Any, sandbox: Any) -> None:
        self.n = 0

    def tools(self) -> Any:
        return [self.first] if self.n < 1 else [self.first, self.second]

    @tool
    def first(self) -> str:
        """One."""
        self.n += 1
        return "ok"

    @tool
    def second(self) -> str:
        """Two."""
        return "ok"


def thinks(task: Any, rng: Any) -> Any:
    yield Say("one</think>\n", calls=[("first", {})])
    yield Say("two</think>\nthe end")


@pytest.mark.parametrize("history", ["as_template", "as_sampled"])
async def test_other_tools_do_not_change_how_a_thought_begins(tmp_path: Path, history: str) -> None:
    parts = make_parts(tmp_path, agent={"history": history}, tools=["tests.rollouts.test_history:Grows"])
    renderer = parts.renderer(Opens())
    context = parts.context(ScriptedEngine(thinks, renderer, renderer.parser), renderer, None)
    (episode,) = await collect(context, specs(1))
    assert [(branch.turn, branch.reason) for branch in episode.branches] == [(1, "tools")]
    assert "assistant\n<think>one</think>" in ByteTokenizer().decode(prompts(episode)[1])


class Screens(Environment):
    """Shows another screen after each move."""

    def open(self, task: Any, sandbox: Any) -> None:
        self.moves = 0

    def opening(self) -> Any:
        return {"role": "user", "content": ["The screen:", {"type": "image", "image": self.picture()}]}

    def picture(self) -> bytes:
        return png(colour=(self.moves, 0, 0))

    @tool
    def move(self) -> ToolResult:
        """Moves on."""
        self.moves += 1
        return ToolResult("Moved.", images=[self.picture()])


GONE = "[an image, no longer shown]"
SHOWN = "[image]"


def mover(task: Any, rng: Any) -> Any:
    for _ in range(3):
        yield Say("<think>on</think>", calls=[("move", {})])
    yield Say("there")


def look_at(task: Any) -> Task:
    return Task.of("t", [{"role": "user", "content": ["Go there:", {"type": "image", "image": png(4, 4)}]}])


class Watches(ScriptedEngine):
    """Keeps what the session shows before each reply."""

    seen: ClassVar[list[list[str]]] = []

    async def generate(self, token_ids: Any, sampling: Any, session: str) -> Any:
        live = self._live[session].messages
        self.seen.append([text_of(m["content"], lambda part: SHOWN) for m in live if m["role"] != "assistant"])
        return await super().generate(token_ids, sampling, session)


async def with_screens(tmp_path: Path, history: Any) -> tuple[Episode, Any]:
    Watches.seen = []
    parts = make_parts(tmp_path, agent={"history": history}, tools=["tests.rollouts.test_history:Screens"])
    renderer = parts.renderer(ByteTokenizer())
    with RunDir.create(tmp_path / "run") as run:
        context = replace(
            parts.context(Watches(mover, renderer, renderer.parser), renderer, None),
            put_blob=run.put_blob,
            get_blob=run.get_blob,
        )
        (episode,) = await collect(context, [EpisodeSpec("e", "g", look_at(None))], run=run)
    report = check(run.path)
    assert report.ok, report.as_text()
    return episode, renderer


async def test_the_last_images_are_shown_and_those_of_the_task(tmp_path: Path) -> None:
    episode, _ = await with_screens(tmp_path, {"last_images": 1})
    assert episode.status == "done", episode.error
    gone, moved = f"The screen:\n{GONE}", f"Moved.\n{GONE}"
    assert Watches.seen == [
        [f"Go there:{SHOWN}", f"The screen:{SHOWN}"],
        [f"Go there:{SHOWN}", gone, f"Moved.{SHOWN}"],
        [f"Go there:{SHOWN}", gone, moved, f"Moved.{SHOWN}"],
        [f"Go there:{SHOWN}", gone, moved, moved, f"Moved.{SHOWN}"],
    ]
    assert [(branch.turn, branch.reason) for branch in episode.branches] == [
        (1, "images"),
        (2, "images"),
        (3, "images"),
    ]
    assert [sum(token < 0 for token in prompt) for prompt in prompts(episode)] == [2] * 4
    assert all(len(call.images) == 1 for turn in episode.turns for call in turn.calls)  # the record has them all


async def test_replies_keep_their_tokens_where_images_go(tmp_path: Path) -> None:
    episode, renderer = await with_screens(tmp_path, {"last_images": 2})
    assert [(branch.turn, branch.reason) for branch in episode.branches] == [(2, "images"), (3, "images")]
    sampled = [episode.nodes[turn.node].token_ids for turn in episode.turns]
    for turn, prompt in enumerate(prompts(episode)):
        text = bytes(token for token in prompt if 0 <= token < 256).decode()
        assert [text.count("<think>on</think>"), text.count(GONE)] == [turn, max(0, turn - 1)]
        assert all(str(ids)[1:-1] in str(prompt) for ids in sampled[:turn])
    rows = training_samples(episode, [1.0] * 4)
    assert sum(int(row.loss_mask.sum()) for row in rows) == episode.sampled_tokens
    told = [row.token_ids.tolist() for row in SupervisedConversation.of(episode).samples(renderer)]
    assert told == [row.token_ids.tolist() for row in rows]


async def test_where_there_are_fewer_images_nothing_branches(tmp_path: Path) -> None:
    few, _ = await with_screens(tmp_path / "few", {"last_images": 4})
    all_shown, _ = await with_screens(tmp_path / "all", "as_sampled")
    assert few.branches == []
    assert few.nodes == all_shown.nodes
