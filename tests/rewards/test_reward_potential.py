"""The potential of turns without a gold answer, on written beliefs and by a real tiny model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
import torch

from agentrl.engines.embedded.engine import TorchEngine
from agentrl.rewards import RewardError, RewardSet
from agentrl.rewards.groups import score_group
from agentrl.rollouts.beliefs import ASK, PolicyBeliefs
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from tests.estimators.test_credit_gain import engine, renderer  # noqa: F401  # fixtures
from tests.estimators.test_credit_gain import episode as three_turns
from tests.rewards.make import make_episode, turn
from tests.training.make import llama

TASK = Task.of("t", "Which city?")
HALF, QUARTER = math.log(0.5), math.log(0.25)


def shown(text: str) -> dict[str, str]:
    return {"role": "tool", "content": text}


def member(number: int, answer: str | None, *observations: str) -> Episode:
    turns = [*(turn(observations=[shown(text)]) for text in observations), turn()]
    return msgspec.structs.replace(make_episode(TASK, *turns, answer=answer), id=f"g#{number}")


async def believed(episode: Episode, answers: Sequence[str], lead: str) -> list[list[float | None]]:
    """Before the search 1/4, then 1/2, and in the end twice as much for the first text; nothing fits of `far`."""
    assert lead == "So: "
    if answers == ["far"]:
        return [[None], [HALF], [None]]
    return [[QUARTER] * len(answers), [HALF] * len(answers), [0.0, *[HALF] * (len(answers) - 1)]]


async def rewarded(*group: Episode, beliefs=believed, **settings) -> list[list[float | None]]:
    given = {"lead": "So: ", "eps": 0.0, **settings}
    rewards = RewardSet.from_recipe({"it": {"use": "outcome_potential", **given}})
    return [[each.get("it") for each in score.turns] for score in await score_group(rewards, group, beliefs=beliefs)]


async def test_gains_by_hand() -> None:
    """Of four answers two say Oslo, in two texts: q is 1/2, or with what names it half of the time e^(1/2) more."""
    group = [
        member(0, "Oslo", "It is Oslo."), member(1, "oslo!", "No idea."), member(2, "Rome", "?"), member(3, "far", "?"),
        member(4, None, "Oslo"),
    ]  # fmt: skip
    bare = await rewarded(*group, evidence=0.0)
    both = [0.5 * math.log(2), 0.5 * math.log(1.5) + 0.25]
    assert bare[0] == pytest.approx(both)
    assert bare[1] == pytest.approx(both)
    assert bare[2] == pytest.approx([0.25 * math.log(2), 0.25 * math.log(2) + 0.125])
    assert bare[3] == pytest.approx([0, 0.125])
    assert bare[4] == [0, 0]
    trusted = 2 * math.exp(0.5) / (2 * math.exp(0.5) + 2)
    assert (await rewarded(*group))[0] == pytest.approx([2 * trusted * both[0], 2 * trusted * both[1]])
    alone = await rewarded(*group, evidence=0.0, references=1, terminal=0.0)
    assert alone[1] == pytest.approx([0.5 * math.log(2), 0.5 * math.log(2)])


async def test_an_episode_of_one_turn_gets_the_reliability() -> None:
    assert await rewarded(member(0, "Oslo"), member(1, "Rome")) == [[0.25], [0.25]]


@pytest.mark.parametrize("group", [[member(0, "Oslo", "?")], [member(0, None, "?"), member(1, None)]])
async def test_without_others_or_answers_turns_get_nothing(group: list[Episode]) -> None:
    assert {value for turns in await rewarded(*group) for value in turns} == {0.0}


async def test_without_a_policy_it_is_refused() -> None:
    with pytest.raises(RewardError, match="no policy samples"):
        await rewarded(member(0, "Oslo", "?"), member(1, "Rome", "?"), beliefs=None)


def test_beliefs_are_for_groups() -> None:
    def alone(episode: Episode, beliefs) -> float:
        return 0.0

    with pytest.raises(RecipeError, match="only functions of the group"):
        RewardSet.from_recipe({"it": {"use": alone}})


async def test_beliefs_equal_plain_forward_passes(renderer, engine: TorchEngine) -> None:  # noqa: F811
    """Before each turn, of which the last is in a branch of its own, and after it."""
    played = three_turns(renderer, TASK)
    found = await PolicyBeliefs(engine, renderer)(played, ["Oslo", "Rome" * 200], "It is ")
    model = llama(vocab_size=300, max_position_embeddings=512)
    trajectory, last = Trajectory(played.nodes), played.turns[-1].node
    prompts = [trajectory.before(each.node) for each in played.turns]
    prompts.append([*trajectory.tokens(last), *renderer.extend(played.nodes[last].token_ids, ASK)])
    for prompt, (near, far) in zip(prompts, found, strict=True):
        said = renderer.begin("It is Oslo", prompt)
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + said])).logits[0].log_softmax(-1)
        plain = [logprobs[len(prompt) + k - 1, said[k]].item() for k in range(len(said) - 4, len(said))]
        assert near == pytest.approx(sum(plain) / 4, abs=1e-5)
        assert far is None
