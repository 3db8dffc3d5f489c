"""Voices beside the policy: who may speak, what is recorded, and what is refused."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.recipe_check import check as check_recipe
from agentrl.config.loader import load_recipe
from agentrl.engines import replicas
from agentrl.engines.scripted import Say
from agentrl.estimators.registry import EpisodeCredit, over_all_turns
from agentrl.estimators.table import CreditTable
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.auxiliary.open import open_policies
from agentrl.rollouts.builder import build
from agentrl.rollouts.faults.budgets import EngineDown
from agentrl.rollouts.summary import summary
from agentrl.store import RunDir, check
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, RecipeError
from agentrl.types.sample import training_samples
from tests.clock import Clock
from tests.engines.http_server import serving, status
from tests.engines.vllm_world import small_model
from tests.rollouts.world import collect, make_context, make_parts, specs

HERE = "tests.rollouts.test_policies"
VOICE = {"scripts": {"critic": f"{HERE}:critic"}, "policies": {"critic": {"script": "critic"}}}


class Listens(Agent):
    """Asks a critic after each of two replies; the critic's context is rewritten in between."""

    async def run(self, session: Any) -> None:
        critic = session.context("critic", [{"role": "user", "content": "Criticise."}], policy="critic")
        for _ in range(2):
            reply = await session.generate()
            session.reward(said=1.0)
            critic.rewrite([{"role": "user", "content": f"Criticise: {reply.text}"}])
            session.say((await critic.generate()).text)
            critic.reward(said=100.0)
        reply = await session.generate()
        session.finish("answer", reply.text)


def critic(task: Any, rng: random.Random, tools: Any) -> Any:
    assert tools == []
    yield Say("Too short.")
    yield Say("Better.")


def writer(task: Any, rng: random.Random) -> Any:
    for text in ("One.", "One two.", "One two three."):
        yield Say(text)


async def played(tmp_path: Path) -> Episode:
    rewards = {"exact_match": {"key": "answer"}}
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Listens"}, rewards=rewards, **VOICE)
    with RunDir.create(tmp_path / "run") as run:
        async with open_policies(parts) as speakers:
            (episode,) = await collect(make_context(parts, writer, speakers=speakers), specs(1), run=run)
        assert speakers.unheard == []
    assert check(tmp_path / "run").ok
    return episode


async def test_another_voice_is_recorded_as_text_and_never_trained(tmp_path: Path) -> None:
    episode = await played(tmp_path)
    assert [(turn.context, turn.text) for turn in episode.turns] == [
        ("main", "One."),
        ("critic", "Too short."),
        ("main", "One two."),
        ("critic", "Better."),
        ("main", "One two three."),
    ]
    spoken = [episode.nodes[turn.node] for turn in episode.turns if turn.context == "critic"]
    assert [(node.kind, node.token_ids) for node in spoken] == [("spoken", []), ("spoken", [])]
    assert [turn.index for turn in episode.own_turns] == [0, 2, 4]
    assert [branch.turn for branch in episode.branches] == [3]
    (row,) = training_samples(episode, [1.0] * 5)
    assert [turn for turn, _, _ in row.turn_spans] == [0, 2, 4]
    assert (summary([episode])["turns"], summary([episode])["turns/critic"]) == (3, 2)
    assert [said.trains for said in SupervisedConversation.of(episode).turns] == [True, False, True, False, True]


async def test_credit_is_of_the_policy_alone(tmp_path: Path) -> None:
    episode = await played(tmp_path)
    table = CreditTable.from_episodes([episode])
    assert (table.length.tolist(), table.reward.tolist()) == ([3], [1, 1, 0])
    credit = EpisodeCredit(episode_id="e", estimator="x", turn_advantages=[1.0, 2.0, 3.0], parts={"a": [4.0, 5.0, 6.0]})
    whole = over_all_turns(credit, episode)
    assert (whole.turn_advantages, whole.parts) == ([1, 0, 2, 0, 3], {"a": [4, 0, 5, 0, 6]})


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ({"policy": {"script": "random"}}, "is the name of the policy that trains"),
        ({"user": {}}, "nobody speaks"),
        ({"user": {"script": "ghost"}}, "policies.user.script"),
        ({"user": {"script": "random", "checkpoint": "x"}}, "'script' speaks alone"),
        ({"user": {"engine": "torch"}}, "give 'checkpoint'"),
        (
            {"user": {"engine": {"use": "openai", "urls": ["http://x/v1"], "model": "m"}, "checkpoint": "x"}},
            "weights of its own",
        ),
        ({"user": {"lora": {"rank": 4}}}, "lora"),
        ({"user": {"checkpoint": "./no/where"}}, "no/where' is neither a run nor a model"),
    ],
)
def test_a_voice_that_cannot_be_is_refused(tmp_path: Path, policies: dict[str, Any], said: str) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"q": "a"}\n')
    recipe = {"name": "r", "tasks": {"jsonl": "tasks.jsonl", "prompt": "{q}"}, "policies": policies}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    with pytest.raises(AgentRLError) as refused:
        check_recipe(str(tmp_path / "recipe.yaml"), [])
    assert said in str(refused.value)


def test_a_dialogue_without_a_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"q": "a"}\n')
    recipe = {"name": "r", "tasks": {"jsonl": "tasks.jsonl", "prompt": "{q}"}, "agent": "dialogue"}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    with pytest.raises(RecipeError, match="talks with the speaker 'user', and 'policies' has none"):
        load_recipe(str(tmp_path / "recipe.yaml"), [])


async def test_frozen_weights_speak(tmp_path: Path) -> None:
    small_model(tmp_path / "model")
    settings = {"critic": {"checkpoint": str(tmp_path / "model"), "sampling": {"max_tokens": 3}}}
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Listens"}, policies=settings)
    async with open_policies(parts) as speakers:
        (episode,) = await collect(make_context(parts, writer, speakers=speakers), specs(1))
    assert episode.status == "done", episode.error
    assert [turn.finish for turn in episode.turns if turn.context == "critic"] == ["length", "length"]
    assert [len(episode.nodes[turn.node].token_ids) for turn in episode.turns if turn.context == "critic"] == [0, 0]


async def test_a_voice_that_nobody_names_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = make_parts(tmp_path, **VOICE)
    with caplog.at_level("INFO"):
        async with open_policies(build(parts.recipe)) as speakers:
            await collect(make_context(parts, writer, speakers=speakers), specs(1))
    assert "policies.critic: no context of an episode named it" in caplog.text


class Talks(Agent):
    """The user speaks, and the policy answers, time after time."""

    async def run(self, session: Any) -> None:
        user = session.context("user", [{"role": "user", "content": "Hello."}], policy="user")
        for _ in range(2):
            session.say((await user.generate()).text)
            user.say((await session.generate()).text)
        session.finish()


async def test_a_voice_that_goes_away_is_told_at_once_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And again while that lasts; the failure that stops the run names it, too. The policy's engine is there."""
    monkeypatch.setattr(replicas, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(replicas, "LONGEST_PAUSE_S", 0.0)
    clock, away = Clock(monkeypatch), asyncio.Event()

    async def answer(path: str, body: Any) -> Any:
        if path.endswith("/models"):
            return {}
        if away.is_set():
            clock.forward(replicas.SAY_EVERY_S / 2)
            return status(503, "the user has left")
        away.set()
        message = {"role": "assistant", "content": "I am here."}
        return {"choices": [{"message": message, "finish_reason": "stop"}]}

    async with serving(answer) as url:
        engine = {"use": "openai", "urls": [f"{url}/v1"], "model": "user", "retries": 3, "api_key_env": "PATH"}
        parts = make_parts(
            tmp_path,
            agent={"use": f"{HERE}:Talks"},
            policies={"user": {"engine": engine}},
            rewards={"exact_match": {"key": "answer"}},
            limits={"retries": 0, "backoff_s": 0.0, "engine_failures": 2, "user_errors": 1000},
        )
        async with open_policies(parts) as speakers:
            context = make_context(parts, writer, speakers=speakers)
            with pytest.raises(EngineDown, match=r"policies\.user: 4 attempts failed"):
                await collect(context, specs(4))
    told = [each for each in caplog.messages if "trying again" in each]
    assert all(each.startswith("policies.user: http://127.0.0.1") for each in told)
    assert len(told) > 1, "at once, and again while it lasts"
    assert "(the last reply was 8 s ago)" in told[0], "half of the time between two messages"
