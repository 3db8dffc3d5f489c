"""Every estimator on episodes with several contexts: two of the policy, one of a speaker, and a rewritten one."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.config.credit import CreditSettings
from agentrl.engines.scripted import Say
from agentrl.estimators.registry import ESTIMATORS, CreditAssigner, load_credit
from agentrl.estimators.table import OPTIONAL, CreditTable
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.auxiliary.open import open_policies
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.types.episode import Episode, Node
from agentrl.types.task import Task
from tests.rollouts.world import collect, make_context, make_parts

HERE = __name__
TURNS = 5
HELPER = (1, 2)
"""The turns that have a context of their own where there are several."""
GIVEN = OPTIONAL.keys() - {"answer", "action", "observation_tokens", "role", "executed", "origin"}
"""Columns that the test gives, because scripts have none of them; the others are those of the episodes."""


class Plays(Agent):
    """Five replies, each with a state, a reward and a text of the task's."""

    def __init__(self) -> None:
        self.told = 0

    def state_key(self) -> Any:
        return self.states[self.told]

    async def reply(self, conversation: Any) -> None:
        self.states = conversation.task.data["states"]
        await conversation.generate()
        conversation.reward(step=conversation.task.data["rewards"][self.told])
        self.told += 1


class Alone(Plays):
    """All of them in one context."""

    async def run(self, session: Any) -> None:
        self.states = session.task.data["states"]
        for _ in range(TURNS):
            await self.reply(session)
            session.say("Go on.")
        session.finish("answer", session.task.data["answer"])


class Several(Plays):
    """Two of them in a context of their own, two behind a rewritten prompt; a speaker speaks in between, and last."""

    async def run(self, session: Any) -> None:
        self.states = session.task.data["states"]
        critic = session.context("critic", [{"role": "user", "content": "Criticise."}], policy="critic")
        helper = session.context("helper", [{"role": "user", "content": "Help."}], role="agent")
        await self.reply(session)
        await self.reply(helper)
        helper.say((await critic.generate()).text)
        critic.reward(said=100.0)
        await self.reply(helper)
        session.rewrite([{"role": "user", "content": "It was long."}])
        await self.reply(session)
        session.say("Go on.")
        await self.reply(session)
        await critic.generate()
        critic.reward(said=100.0)
        session.finish("answer", session.task.data["answer"])


Plot = Generator[Say, Any, None]


def alone(task: Task, rng: random.Random) -> Plot:
    for text in task.data["texts"]:
        yield Say(text)


def several(task: Task, rng: random.Random, context: str) -> Plot:
    for k, text in enumerate(task.data["texts"]):
        if (k in HELPER) == (context == "helper"):
            yield Say(text)


def critic(task: Task, rng: random.Random) -> Plot:
    yield Say("So so.")
    yield Say("Fine.")


def outcome(task: Task) -> float:
    return float(task.data["score"])


def spec(group: int, member: int) -> EpisodeSpec:
    rng = random.Random(f"{group}/{member}")
    data = {
        "texts": [rng.choice(["one", "two two", "three"]) for _ in range(TURNS)],
        "states": [rng.choice("abc") for _ in range(TURNS)],
        "rewards": [rng.choice([0.0, 0.25, 1.0]) for _ in range(TURNS)],
        "score": member == group,
        "answer": rng.choice("xy"),
    }
    return EpisodeSpec(f"g{group}#{member}", f"g{group}", Task.of(f"t{group}", "Play.", **data))


async def played(tmp_path: Path, agent: str, script: Any) -> list[Episode]:
    parts = make_parts(
        tmp_path,
        agent={"use": f"{HERE}:{agent}"},
        rewards={"outcome": f"{HERE}:outcome"},
        credit={"use": "gigpo"},  # it reads states
        scripts={"critic": f"{HERE}:critic"},
        policies={"critic": {"script": "critic"}},
    )
    async with open_policies(parts) as speakers:
        context = make_context(parts, script, speakers=speakers)
        found = await collect(context, [spec(group, member) for group in range(2) for member in range(6)])
    assert {episode.status for episode in found} == {"done"}, [episode.error for episode in found]
    return sorted(found, key=lambda episode: episode.id)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Episode], list[Episode]]:
    folder = tmp_path_factory.mktemp("contexts")
    return asyncio.run(played(folder, "Alone", alone)), asyncio.run(played(folder, "Several", several))


def columns(episodes: list[Episode]) -> dict[str, dict[str, Any]]:
    """What models and judges would give, drawn by the ids of the episodes."""
    given: dict[str, dict[str, Any]] = {name: {} for name in sorted(GIVEN)}
    for episode in episodes:
        rng = np.random.default_rng(zlib.crc32(episode.id.encode()))
        tokens = sum(episode.trained(turn) for turn in episode.own_turns)
        sizes = {"trajectory": 1, "turn": len(episode.own_turns), "token": tokens}
        for name, by_episode in given.items():
            drawn = rng.random(sizes[OPTIONAL[name][0]])
            by_episode[episode.id] = -drawn if name.endswith("logprob") else drawn
    return given


def assigner(name: str) -> CreditAssigner:
    return load_credit(CreditSettings.model_validate({"use": name}))


@pytest.mark.parametrize("name", ESTIMATORS.built_in)
def test_contexts_that_do_not_matter_change_no_credit(both: tuple[list[Episode], list[Episode]], name: str) -> None:
    one, many = both
    expected, _ = assigner(name).assign(one, columns(one))
    found, _ = assigner(name).assign(many, columns(many))
    assert any(any(credit.turn_advantages) for credit in expected)
    for episode, credit, plain in zip(many, found, expected, strict=True):
        assert [turn.agent for turn in episode.turns] == ["agent"] * 2 + ["critic"] + ["agent"] * 3 + ["critic"]
        own = [turn.index for turn in episode.own_turns]
        assert [credit.turn_advantages[k] for k in own] == pytest.approx(plain.turn_advantages, abs=1e-12)
        assert [value for k, value in enumerate(credit.turn_advantages) if k not in own] == [0.0, 0.0]
        assert np.isfinite(credit.turn_advantages).all()
        for part, values in plain.parts.items():
            assert [credit.parts[part][k] for k in own] == pytest.approx(values, abs=1e-12)
        assert same(credit.token_advantages, plain.token_advantages)
        assert same(credit.value_targets, plain.value_targets)


def same(found: Any, expected: Any) -> bool:
    return bool(found == expected if expected is None else found == pytest.approx(expected, abs=1e-12))


def test_the_tokens_between_two_turns_are_those_of_the_first_that_goes_on(
    both: tuple[list[Episode], list[Episode]],
) -> None:
    one, many = (CreditTable.from_episodes(episodes[:1]).observation_tokens for episodes in both)
    assert one is not None
    assert many is not None
    go_on = one[0]
    assert one.tolist() == [go_on] * 4 + [0]
    heard = many[1]  # of the critic
    assert many.tolist() == [0, heard, 0, go_on, 0]  # behind the first turn the prompt is rewritten
    assert heard > 0
    prompt, reply, told, again = (
        Node(parent=parent, kind=kind, token_ids=[0] * size)
        for parent, kind, size in ((-1, "prompt", 5), (0, "sampled", 3), (1, "observation", 2), (2, "sampled", 1))
    )
    longer = [msgspec.structs.replace(told, token_ids=[1] * 7), msgspec.structs.replace(again, parent=4)]
    turns = [msgspec.structs.replace(turn, node=node) for turn, node in zip(both[0][0].turns, (1, 3, 5), strict=False)]
    forked = msgspec.structs.replace(both[0][0], nodes=[prompt, reply, told, again, *longer], turns=turns)
    sizes = CreditTable.from_episodes([forked]).observation_tokens
    assert sizes is not None
    assert sizes.tolist() == [2, 0, 0]
