"""`agent.history: as_template`: earlier turns as the chat template renders them, and drift by its kind."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.store import RunDir, check
from agentrl.tools.base import Environment, tool
from agentrl.train.supervised.conversation import Conversation
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.sample import training_samples
from tests.rollout.world import collect, make_parts, specs

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
    told = [row.token_ids.tolist() for row in Conversation.of(episode).samples(renderer)]
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


@pytest.mark.parametrize("history", ["as_told", {"last_images": 2}])
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
    parts = make_parts(tmp_path, agent={"history": history}, tools=["tests.rollout.test_history:Grows"])
    renderer = parts.renderer(Opens())
    context = parts.context(ScriptedEngine(thinks, renderer, renderer.parser), renderer, None)
    (episode,) = await collect(context, specs(1))
    assert [(branch.turn, branch.reason) for branch in episode.branches] == [(1, "tools")]
    assert "assistant\n<think>one</think>" in ByteTokenizer().decode(prompts(episode)[1])
