"""KL in the reward: where it goes, and that it is the same in all places."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from agentrl.config.train import KlSettings
from agentrl.training.batch.kl_reward import with_kl_reward
from agentrl.types.episode import Context
from agentrl.types.figures.of_episodes import immediate
from agentrl.types.sample import TrainingSample, untrained_samples

from .make import episode


def logprobs(rows: list[TrainingSample]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of a policy that lies above the reference by 0.1 for each token id, and of the reference."""
    own = [np.where(row.loss_mask, 0.1 * row.token_ids, 0.0).astype(np.float32) for row in rows]
    return own, [np.zeros_like(each) for each in own]


@pytest.mark.parametrize("branch_after", [None, 1])
def test_a_penalty_is_the_same_by_token_by_turn_and_by_episode(branch_after):
    played = episode("g/e", [1, 2, 3], 3, np.random.default_rng(0), branch_after)
    settings = KlSettings(coef=0.5, estimator="k1", place="reward")
    sampled = [np.array(played.nodes[turn.node].token_ids) for turn in played.turns]
    wanted = [-0.5 * 0.1 * ids for ids in sampled]
    samples = untrained_samples(played)
    tokens, turns, outcome = (
        with_kl_reward([played], samples, *logprobs(samples), settings, place)
        for place in ("tokens", "turns", "outcome")
    )
    assert tokens.columns["token_reward"]["g/e"] == pytest.approx(np.concatenate(wanted), rel=1e-6)
    assert tokens.episodes == [played]
    (by_turn,), (whole,) = turns.episodes, outcome.episodes
    assert [immediate(turn) for turn in by_turn.turns] == pytest.approx([part.sum() for part in wanted], rel=1e-6)
    assert by_turn.reward == played.reward
    assert whole.reward == pytest.approx(played.reward + sum(part.sum() for part in wanted), rel=1e-6)
    assert whole.turns == played.turns
    assert turns.columns == outcome.columns == {}
    mean = 0.1 * np.concatenate(sampled).mean()
    assert [each.kl for each in (tokens, turns, outcome)] == [pytest.approx(mean)] * 3


@pytest.mark.parametrize(("policy", "own"), [("policy", [0, 2]), ("critic", [1, 3])])
def test_a_turn_of_another_policy_that_trains_has_no_share(policy, own):
    played = episode("g/e", [1, 2, 3], 3, np.random.default_rng(0))
    turns = [msgspec.structs.replace(turn, context="critic") if turn.index in (1, 3) else turn for turn in played.turns]
    contexts = {"critic": Context(role="critic", prompt=[], policy="critic", trains=True)}
    seen = msgspec.structs.replace(played, turns=turns, contexts=contexts).seen_by(policy)
    settings = KlSettings(coef=0.5, estimator="k1", place="reward")
    samples = untrained_samples(seen)
    (penalised,) = with_kl_reward([seen], samples, *logprobs(samples), settings, "turns").episodes
    wanted = [-0.05 * sum(seen.nodes[turn.node].token_ids) if turn.index in own else 0.0 for turn in seen.turns]
    assert [immediate(turn) for turn in penalised.turns] == pytest.approx(wanted, rel=1e-6)
