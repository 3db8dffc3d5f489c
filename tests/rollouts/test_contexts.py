"""Several conversations in one episode."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.replay import ReplayEngine
from agentrl.engines.scripted import Say
from agentrl.rollouts.agent import Agent
from agentrl.store import RunDir, check
from agentrl.types.episode import Episode
from agentrl.types.sample import training_samples
from tests.rollouts.world import collect, make_context, make_parts, play_one, specs

HERE = "tests.rollouts.test_contexts"


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


class Delegates(Agent):
    """Asks two helpers side by side, then answers."""

    async def run(self, session: Any) -> None:
        await session.generate()
        helpers = [session.context(f"helper-{k}", user(f"Part {k}?"), tools=["echo"], role="helper") for k in (1, 2)]
        first = await asyncio.gather(*(helper.generate() for helper in helpers))
        await asyncio.gather(*(helper.run_tools(reply) for helper, reply in zip(helpers, first, strict=True)))
        said = await asyncio.gather(*(helper.generate() for helper in helpers))
        session.say(" and ".join(reply.text for reply in said))
        reply = await session.generate()
        session.finish("answer", reply.text)


def delegating(task: Any, rng: Any, context: str) -> Any:
    if context == "main":
        yield Say("I ask for help.")
        yield Say("All done.")
    else:
        seen = yield Say(calls=[("echo", {"text": context})])
        yield Say(seen[-1]["content"])


async def played(tmp_path: Path, run: RunDir | None = None, **recipe: Any) -> Episode:
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Delegates", **recipe.pop("agent", {})}, **recipe)
    return (await collect(make_context(parts, delegating), specs(1), run=run))[0]


async def test_contexts_are_recorded_in_one_episode(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        episode = await played(tmp_path, run)
        (stored,) = run.rows()
    assert check(tmp_path / "run").ok
    assert episode.answer == "All done."
    order = ["main", "helper-1", "helper-2", "helper-1", "helper-2", "main"]
    assert [turn.context for turn in episode.turns] == order
    assert [turn.index for turn in episode.turns] == list(range(6))
    assert [turn.agent for turn in episode.turns][:2] == ["agent", "helper"]
    assert {name: context.prompt for name, context in episode.contexts.items()} == {
        "helper-1": user("Part 1?"),
        "helper-2": user("Part 2?"),
    }
    assert [tool["function"]["name"] for tool in episode.contexts["helper-1"].tools or []] == ["echo"]
    assert episode.turns[5].observations == []
    assert episode.turns[0].observations[0]["content"] == "helper-1 and helper-2"
    assert (episode.drift, episode.branches) == ([], [])
    assert (stored.contexts, stored.branches) == (3, 0)
    rows = training_samples(episode, [1.0] * 6)
    assert [[turn for turn, _, _ in row.turn_spans] for row in rows] == [[1, 3], [2, 4], [0, 5]]


async def test_a_replay_says_the_same_in_every_context(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", {"recipe": {}}) as run:
        episode = await played(tmp_path, run)
        parts = make_parts(tmp_path, agent={"use": f"{HERE}:Delegates"})
        context = make_context(parts, delegating)
        engine: Any = ReplayEngine(run)
        again = await play_one(replace(context, engine=engine))
    assert [turn.text for turn in again.turns] == [turn.text for turn in episode.turns]
    assert again.nodes == episode.nodes


async def test_the_limits_of_the_episode_hold_for_all_contexts(tmp_path: Path) -> None:
    episode = await played(tmp_path, agent={"max_turns": 2})
    assert (episode.status, episode.stop, len(episode.turns)) == ("truncated", "turns", 2)


class TalksToItself(Agent):
    """Says what it hears in a context of its own that does not train."""

    async def run(self, session: Any) -> None:
        other = session.context("other", user("Hello."), policy="self")
        session.say((await other.generate()).text)
        session.finish("answer", (await session.generate()).text)


async def test_a_context_of_the_policy_itself_may_not_train(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:TalksToItself"})
    with RunDir.create(tmp_path / "run") as run:
        (episode,) = await collect(make_context(parts, delegating), specs(1), run=run)
    assert check(tmp_path / "run").ok
    assert [(turn.context, episode.policy_of(turn)) for turn in episode.turns] == [
        ("other", "self"),
        ("main", "policy"),
    ]
    assert all(episode.nodes[turn.node].token_ids for turn in episode.turns), "recorded token by token"
    assert [turn.index for turn in episode.sampled_turns] == [1]
    assert [row.turn_spans[0][0] for row in training_samples(episode, [1.0] * 2)] == [1]


class Misuses(Agent):
    """Asks for what is not there."""

    ask: dict[str, Any] = {}

    async def run(self, session: Any) -> None:
        await session.generate()
        session.context("twin", user("Hello."))
        session.context(**{"name": "other", "messages": user("Hello."), **self.ask})


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"name": "twin"}, "there is a context 'twin' already"),
        ({"name": "main"}, "there is a context 'main' already"),
        ({"tools": ["ecko"]}, "there is no tool 'ecko'"),
        ({"policy": "user"}, "context 'other' names the policy 'user', and the run has 'policy'"),
        ({"messages": [3]}, "message"),
    ],
)
async def test_a_context_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(Misuses, "ask", ask)
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Misuses"})
    episode = await play_one(make_context(parts, lambda task, rng: iter_says("hm")))
    assert episode.status == "user_error"
    assert episode.error is not None
    assert said in episode.error.message


def iter_says(*texts: str) -> Any:
    for text in texts:
        yield Say(text)
