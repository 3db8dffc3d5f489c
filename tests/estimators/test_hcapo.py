"""Hindsight: the policy's turns with the outcome in the prompt, by a real tiny model, and HCAPO on written numbers."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch

from agentrl.config.credit import Hindsight
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.rollouts.hindsight import HindsightScorer, aside
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from tests.estimators.tables import Member, Step, run, table_of
from tests.estimators.test_credit_gain import engine, episode, renderer  # noqa: F401  # fixtures
from tests.training.make import llama

# Two turns each; the second of the success is exp(-5 log 4 / 5) = 1/4 times as likely in hindsight as the first.
TURNS = [Step(None, 0.0, 1)] * 2
TABLE = table_of([Member("g", 1.0, TURNS), Member("g", 0.0, TURNS)]).with_columns(
    hindsight_logprob=[-1.0, -1.0 - 5 * math.log(4), -2.0, -2.0]
)


def test_by_hand() -> None:
    # h is 1 : 1/4, over its mean 5/8: 1.6 and 0.4, clipped to 1.2 and 0.8. Discounted by 1/2: Q is 0.6 and 0.8; 0 and 0
    # of the failure. Their mean is 0.35. The outcomes are 1/2 from theirs.
    plain = run("hcapo", TABLE, gamma=0.5, std="none")
    assert plain.turn == pytest.approx([0.75, 0.95, -0.85, -0.85])
    assert plain.parts["hindsight"] == pytest.approx([0.25, 0.45, -0.35, -0.35])
    # Half of it is the next turn's: 0.7 and 0.8; the mean is 0.375.
    smooth = run("hcapo", TABLE, gamma=0.5, std="none", smooth=0.5, omega=2.0)
    assert smooth.parts["hindsight"] == pytest.approx([0.65, 0.85, -0.75, -0.75])


def test_a_success_does_not_lose_by_hindsight() -> None:
    # Q of the success: 0.125 * 1.2 and 0.8; of the failure with half the reward 0.0625 and 0.5. Mean 0.378.
    table = table_of([Member("g", 1.0, TURNS), Member("g", 0.5, TURNS)]).with_columns(
        hindsight_logprob=TABLE.hindsight_logprob
    )
    settings = {"gamma": 0.125, "std": "none", "success": 0.6}
    bare, masked = (run("hcapo", table, **settings, protect=protect).parts["hindsight"] for protect in (False, True))
    assert bare == pytest.approx([-0.228125, 0.421875, -0.315625, 0.121875])
    assert masked == pytest.approx([0.0, 0.421875, -0.315625, 0.121875])


def test_very_unlikely_turns_are_still_compared() -> None:
    table = TABLE.with_columns(hindsight_logprob=np.array([-9000.0, -9000.0, -1.0, -1.0]))
    assert run("hcapo", table, gamma=1.0, std="none").parts["hindsight"] == pytest.approx([0.5, 0.5, -0.5, -0.5])


def test_bounds_must_surround_1() -> None:
    with pytest.raises(ValueError, match="bounds around 1"):
        run("hcapo", TABLE, clip=(1.1, 1.2))


@pytest.mark.parametrize("begins", [0, 2])
async def test_turns_in_hindsight_equal_plain_forward_passes(renderer, engine: TorchEngine, begins: int) -> None:  # noqa: F811
    played = episode(renderer, Task.of("t", "Which city?"), begins)
    turns = [msgspec.structs.replace(played.turns[0], observations=[{"role": "user", "content": "seen"}])]
    turns += played.turns[1:]
    scorer = HindsightScorer(Hindsight(note="End: {outcome}!", outcome_tokens=3))
    assert [scorer.note(renderer, answer, turns) for answer in ("Oslo", None)] == ["End: Osl!", "End: see!"]
    assert scorer.note(renderer, None, played.turns) == "End: !"

    scored = await scorer.score(engine, renderer, Trajectory(played.nodes), turns, "Oslo")
    model = llama(vocab_size=300, max_position_embeddings=512)
    for turn, found in zip(played.turns, scored, strict=True):
        trajectory = Trajectory(played.nodes)
        prompt, begun = trajectory.before(turn.node), trajectory.begun(turn.node)
        assert len(begun) == begins
        bridge, said = aside(renderer, prompt, "End: Osl!"), played.nodes[turn.node].token_ids
        assert "End: Osl!" in renderer.tokenizer.decode(bridge)
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + bridge + begun + said])).logits[0].log_softmax(-1)
        at = len(prompt) + len(bridge) + len(begun)
        plain = [logprobs[at + k - 1, token].item() for k, token in enumerate(said)]
        assert found == pytest.approx(sum(plain) / len(plain), abs=1e-5)
        assert len(bridge) <= scorer.room(renderer, prompt)


async def test_of_a_reply_that_does_not_fit_the_beginning_is_scored(renderer, engine: TorchEngine) -> None:  # noqa: F811
    played = episode(renderer, Task.of("t", "Which city?"))
    scorer, first = HindsightScorer(Hindsight(note="{outcome}")), played.turns[:1]
    whole = await scorer.score(engine, renderer, Trajectory(played.nodes), first, "Oslo")
    prompt, said = played.nodes[0].token_ids, played.nodes[1].token_ids
    engine.max_context = len(prompt) + len(aside(renderer, prompt, "Oslo")) + len(said) - 2
    cut = await scorer.score(engine, renderer, Trajectory(played.nodes), first, "Oslo")
    assert cut[0] is not None
    assert cut != whole
