"""Credit scales the clip range of each turn: from the credit of an episode to the loss of its tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.config.credit import CreditSettings
from agentrl.estimators.registry import load_credit
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.clipped import ppo_clip
from agentrl.training.losses.sequence import gspo, gspo_token
from agentrl.training.losses.settings import Gspo, PpoClip
from agentrl.training.losses.weights import token_weights
from agentrl.training.model.columns import token_columns
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.sample import training_samples, with_advantages
from agentrl.types.task import Task


def batch_of(ratio, advantage, scale) -> TokenBatch:
    """Tokens that are turns of their own."""
    count = len(ratio)
    logprob = torch.zeros(count, requires_grad=True)
    old, ones = -torch.tensor(ratio).log(), torch.ones(count)
    index, one = torch.arange(count), torch.zeros(count, dtype=torch.long)
    given = None if scale is None else torch.tensor(scale)
    return TokenBatch(logprob, old, old, torch.tensor(advantage), ones, ones, one, index, one, clip_scale=given)


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (ppo_clip, PpoClip()),
        (gspo, Gspo(sequence="turn", clip_low=0.2, clip_high=0.2)),
        (gspo_token, Gspo(sequence="turn", clip_low=0.2, clip_high=0.2)),
    ],
)
def test_the_clip_range_is_that_of_the_turn(loss, settings):
    ratio, advantage = [1.5, 1.5, 1.25, 0.5, 0.85], [1.0, 1.0, 1.0, -1.0, -1.0]
    batch = batch_of(ratio, advantage, [1.0, 1.3, 1.3, 0.5, 0.5])
    found, clipped = loss(batch, settings)
    # 1 + .2, 1 + .26, inside of 1 + .26; below 1 - .1 twice.
    np.testing.assert_allclose(found.detach(), [-1.2, -1.26, -1.25, 0.9, 0.9], rtol=1e-6)
    assert clipped.tolist() == [True, True, False, True, True]
    found.sum().backward()
    np.testing.assert_allclose(batch.logprob.grad, [0, 0, -1.25, 0, 0], rtol=1e-6)


def test_without_a_scale_and_with_1_the_loss_is_the_same():
    ratio, advantage = [1.5, 0.5, 1.1], [1.0, -1.0, 1.0]
    plain, ones = (ppo_clip(batch_of(ratio, advantage, scale), PpoClip())[0] for scale in (None, [1.0] * 3))
    assert plain.tolist() == ones.tolist()


def episode(id: str, beliefs: list[float], reward: float) -> Episode:
    """An episode of turns of two tokens, before each of which the gold answer had this log-probability."""
    nodes, turns = [Node(parent=-1, kind="prompt", token_ids=[1, 2])], []
    for index, belief in enumerate(beliefs):
        nodes.append(Node(parent=len(nodes) - 1, kind="sampled", token_ids=[3, 4], logprobs=[-0.5, -0.5]))
        turns.append(Turn(index=index, node=len(nodes) - 1, text="", finish="stop", gold_logprob=belief))
    return Episode(id=id, group_id="g", task=Task.of("t", "go"), status="done", nodes=nodes, turns=turns, reward=reward)


def test_the_credit_of_an_episode_scales_the_range_of_its_tokens():
    played = [episode("e", [-2.0, -1.0], 1.0), episode("f", [-2.0, -3.0], 0.0)]
    credits, _ = load_credit(CreditSettings.model_validate({"use": "a2tgpo", "beta": 0.5})).assign(played)
    samples = [
        sample
        for each, credit in zip(played, credits, strict=True)
        for sample in with_advantages(
            training_samples(each, [0.0, 0.0]), credit.turn_advantages, None, credit.clip_scales
        )
    ]
    # Two gains are 1 and -1 deviations from their mean; the last turn has none, nor has the prompt.
    wide = 0.5 * np.tanh(0.5)
    scales = token_columns(samples, token_weights(samples, "token_mean"))["clip_scale"]
    np.testing.assert_allclose(scales[0], [1, 1, 1 + wide, 1 + wide, 1, 1], rtol=1e-4)
    np.testing.assert_allclose(scales[1], [1, 1, 1 - wide, 1 - wide, 1, 1], rtol=1e-4)


def test_samples_without_a_scale_count_as_1_beside_others():
    one, other = (training_samples(episode(id, [0.0], 1.0), [1.0])[0] for id in "ef")
    scaled = with_advantages([other], [1.0], None, [1.2])[0]
    assert "clip_scale" not in token_columns([one], token_weights([one], "token_mean"))
    rows = [one, scaled]
    columns = token_columns(rows, token_weights(rows, "token_mean"))["clip_scale"]
    np.testing.assert_allclose(np.concatenate(columns), [1, 1, 1, 1, 1, 1, 1.2, 1.2], rtol=1e-6)
