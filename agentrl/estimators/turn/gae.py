"""Generalised advantage estimation with a critic: over tokens, over turns, and over both."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentrl.estimators.arrays import Floats, Ints, discounted
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, whiten
from agentrl.estimators.table import CreditTable, needed

WHITEN_EPS = 1e-8
"""Under the root of the batch's deviation, as in verl's `masked_whiten`."""


class GaeSettings(BaseModel):
    """Settings of `gae`.

    Attributes:
        gamma: discount per token; observation tokens do not count.
        lam: 1 is the plain return minus the value, 0 the one-step difference.
        whiten: whether the batch's advantages get mean 0 and deviation 1, every token counting once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gamma: Discount = 1.0
    lam: Discount = 1.0
    whiten: bool = True


class TurnGaeSettings(GaeSettings):
    """Settings of `turn_gae`. `gamma` and `lam` are per turn.

    Attributes:
        anchor: which token's value is the turn's: its first (the state before the turn), or its last.
    """

    anchor: Literal["first", "last"] = "first"


class BiLevelGaeSettings(GaeSettings):
    """Settings of `bi_level_gae`. `gamma` is per token inside a turn; `lam` serves both levels.

    Attributes:
        gamma_high: discount per turn.
    """

    gamma_high: Discount = 0.95


@estimator(
    granularity="token",
    source="arXiv:1506.02438; volcengine/verl@b178a3c core_algos.compute_gae_advantage_return",
    certainty="A",
    needs=["value"],
    reads=["outcome", "turns", "tokens"],
)
def gae(table: CreditTable, settings: GaeSettings) -> Advantages:
    """A_k = delta_k + gamma * lam * A_next(k), delta_k = r_k + gamma * V_next(k) - V_k, then whitened.

    next(k) is the trajectory's next SAMPLED token: observations are skipped, not bootstrapped from. A turn's reward,
    on the last turn with the outcome, sits on its last token, and the reward of a span of its text on the span's last.
    The critic learns the advantage (not whitened) plus V.
    """
    return gae_of(table, *table.placed(table.step_reward), settings)


@estimator(
    granularity="turn",
    source="mll-lab-nu/VAGEN@2936322 no_concat_gae.py",
    certainty="A",
    needs=["value"],
    reads=["outcome", "turns"],
)
def turn_gae(table: CreditTable, settings: TurnGaeSettings) -> Advantages:
    """GAE over turns: A_t = delta_t + gamma * lam * A_{t+1}, delta_t = rho_t + gamma * V_{t+1} - V_t.

    The value of a turn is the critic's at one token, the anchor, which is the only one that the critic learns at. Every
    token of the turn gets A_t; whitening counts every token.
    """
    critic = needed(table.value, "value")
    played = table.tokens > 0
    at = (table.token_offsets[:-1] if settings.anchor == "first" else table.token_offsets[1:] - 1)[played]
    value = np.zeros(table.n_turns)
    value[played] = critic[at]
    raw = recursion(table.step_reward, value, table.turns_left, settings.gamma, settings.lam)
    target = np.full(table.n_tokens, np.nan)
    target[at] = (raw + value)[played]
    advantage = _whitened(raw, table.tokens.astype(np.float64)) if settings.whiten else raw
    return Advantages(advantage, value_target=target, metrics=fit_of(critic, target))


@estimator(
    granularity="token",
    source="mll-lab-nu/RAGEN@20daedc ragen/trainer/core_algos.py, with the end mask of VAGEN's",
    certainty="A",
    needs=["value"],
    reads=["outcome", "turns"],
)
def bi_level_gae(table: CreditTable, settings: BiLevelGaeSettings) -> Advantages:
    """GAE over turns, and inside each turn GAE over its tokens towards the turn's return.

    Level 1 runs over the last tokens of turns with gamma_high: U_t = A_t + V_end. Level 2 takes U_t for the reward of
    the turn's last token and bootstraps from nothing beyond it. Turn ends are known here; RAGEN finds them by rewards
    that are not 0, merges a turn of reward 0 with the next, and fails where the last reward is 0.
    """
    critic = needed(table.value, "value")
    played = table.tokens > 0
    end = table.token_offsets[1:][played] - 1
    value = np.zeros(table.n_turns)
    value[played] = critic[end]
    high = recursion(table.step_reward, value, table.turns_left, settings.gamma_high, settings.lam)
    reward = np.zeros(table.n_tokens)
    reward[end] = (high + value)[played]
    left = table.token_offsets[1:][table.token_turn] - np.arange(table.n_tokens) - 1
    raw = recursion(reward, critic, left, settings.gamma, settings.lam)
    return _by_token(table, raw, settings.whiten)


def gae_of(table: CreditTable, reward: Floats, turn_reward: Floats, settings: GaeSettings) -> Advantages:
    """Token GAE of rewards of tokens [n_tokens], and of turns [n_turns], each on the last token of its turn."""
    critic = needed(table.value, "value")
    reward = reward.copy()
    # The reward of a turn without tokens goes to the last token before it, if the trajectory has one.
    at = table.token_offsets[1:] - 1
    held = at >= table.token_offsets[table.offsets[:-1]][table.trajectory]
    np.add.at(reward, at[held], turn_reward[held])
    raw = recursion(reward, critic, table.token_left, settings.gamma, settings.lam)
    return _by_token(table, raw, settings.whiten)


def _by_token(table: CreditTable, raw: Floats, whitening: bool) -> Advantages:
    critic = needed(table.value, "value")
    target = raw + critic
    token = _whitened(raw, np.ones(len(raw))) if whitening else raw
    return Advantages(table.turn_mean(token), token, target, metrics=fit_of(critic, target))


def recursion(reward: Floats, value: Floats, left: Ints, gamma: float, lam: float) -> Floats:
    """GAE along sequences that lie one after the other; `left` as in `discounted`."""
    following = np.append(value[1:], 0.0)
    delta = reward + gamma * np.where(left > 0, following, 0.0) - value
    return discounted(delta, left, gamma * lam)


def _whitened(values: Floats, weights: Floats) -> Floats:
    return whiten(values, weights, std="sample", eps=WHITEN_EPS)


def fit_of(value: Floats, target: Floats) -> dict[str, float]:
    """Explained variance of the critic's values: 1 is perfect, 0 is as good as a constant."""
    asked = np.isfinite(target)
    spread = float(np.var(target[asked])) if asked.any() else 0.0
    if spread == 0:
        return {}
    return {"value_explained": 1 - float(np.var((target - value)[asked])) / spread}
