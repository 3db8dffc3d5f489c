"""IGPO: the reward of a turn is its gain of the probability of the gold answer."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Bools, Floats, Ints, discounted
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Normalisation, Std, deviation, normalise
from agentrl.estimators.table import CreditTable, Weighting, needed

VARIANCE_FLOOR = 1e-8
"""Added to a pool's variance before the root, as in the authors' code."""

Gain = Literal["probability", "log_probability"]

SMALLEST_SCALE, LARGEST_SCALE = 0.3, 10.0
"""`scaled`: bounds of DR-Venus on the outcomes' mean |z|, from below, and on the factor, from above."""


class IgpoSettings(Normalisation):
    """Settings of `igpo`. `singleton: raw` normalises a lone trajectory over its own turns, as the authors' code does.

    Attributes:
        gain: the difference of the gold answer's probabilities (the geometric mean over its tokens; the paper), or of
            their logarithms (the authors' script of January 2026).
        pools: `joint`: gains and outcomes of a group are normalised together (the paper). `separate`: each for
            themselves (the authors' script). `scaled`: separate, then gains are scaled to the size of the outcomes.
            `raw`: gains are divided by their deviation but not centred, the outcome is added to every turn, and nothing
            is accumulated. The last two are DR-Venus's.
        gamma: discount per turn of the sum over later turns. 1 in IGPO's script, 0.95 in DR-Venus.
        outcome_weight, gain_weight: at the beginning and at the end of training, linear in between.
        weigh: whether the weights apply before the normalisation (IGPO; hardly does anything in separate pools with a
            deviation) or after it (DR-Venus).
    """

    weighting: Weighting = "turn"
    std: Std = "population"
    gain: Gain = "probability"
    pools: Literal["joint", "separate", "scaled", "raw"] = "joint"
    gamma: Discount = 1.0
    outcome_weight: tuple[float, float] = Field((1.0, 1.0))
    gain_weight: tuple[float, float] = Field((1.0, 1.0))
    weigh: Literal["before", "after"] = "before"

    @property
    def follows_training(self) -> bool:
        """True if a weight changes in the course of the training."""
        return any(first != last for first, last in (self.outcome_weight, self.gain_weight))


@estimator(
    granularity="turn",
    source="arXiv:2510.14967; GuoqingWang1/IGPO of 2026-01-30, inclusionAI/DR-Venus@6013141 info_gain_advantage.py",
    certainty="A",
    needs=["gold_logprob"],
    reads=["outcome"],
)
def igpo(table: CreditTable, settings: IgpoSettings) -> Advantages:
    """A_{i,t} = z_{i,t} + gamma * A_{i,t+1}: normalised first, then summed over later turns.

    z is the normalised information gain IG_{i,t} = exp(b_{i,t+1}) - exp(b_{i,t}) of every turn but the last, and the
    normalised outcome of the last; b is the mean log-probability of the gold answer's tokens before the turn. Immediate
    rewards are not read. A pool with one value gives 0.

    Differs from the authors' code: the outcome is the recipe's reward. Theirs is the F1 of the words, or -2 if the
    format is wrong: `f1`, and a component that is -2 then. The probability is that of a reply with
    `information_gain.lead` and the answer; theirs wraps it into a thought and answer tags.
    """
    last = table.turns_left == 0
    gain = information_gain(table, settings.gain)
    weight = [a + (b - a) * table.progress_of_training for a, b in (settings.outcome_weight, settings.gain_weight)]
    outcome_weight, gain_weight = weight if settings.weigh == "before" else (1.0, 1.0)
    reward = np.where(last, outcome_weight * table.score[table.trajectory], gain_weight * gain)
    # Pools 2g and 2g + 1 hold a group's gains and outcomes; a joint pool holds both.
    pool = 2 * table.turn_group + (last if settings.pools != "joint" else 0)
    z = _normalised(table, reward, pool, settings)
    if settings.pools == "raw" and settings.std != "none":
        z[~last] = _uncentred(table, reward, pool, settings)[~last]
    if settings.pools == "scaled":
        z[~last] *= _scale(z, last)
    if settings.weigh == "after":
        z *= np.where(last, *weight)
    if settings.pools == "raw":
        outcome = z[table.offsets[1:] - 1][table.trajectory]
        parts = {"gain": np.where(last, 0.0, z), "outcome": outcome}
    else:
        parts = {
            name: discounted(np.where(chosen, z, 0.0), table.turns_left, settings.gamma)
            for name, chosen in (("gain", ~last), ("outcome", last))
        }
    return Advantages(parts["gain"] + parts["outcome"], parts=parts, metrics=gain_metrics(gain[~last]))


def information_gain(table: CreditTable, kind: Gain) -> Floats:
    """The increase of the gold answer's probability, or of its logarithm, by each turn; 0 for the last [n_turns]."""
    gold_logprob = needed(table.gold_logprob, "gold_logprob")
    belief = np.exp(gold_logprob) if kind == "probability" else gold_logprob
    return np.where(table.turns_left == 0, 0.0, np.append(belief[1:], 0.0) - belief)


def gain_metrics(gain: Floats) -> dict[str, float]:
    """Metrics of the gains of all turns but the last of their trajectories."""
    if not len(gain):
        return {"information_gain": 0.0, "turns_with_gain": 0.0}
    return {"information_gain": float(gain.mean()), "turns_with_gain": float(np.mean(gain != 0))}


def _normalised(table: CreditTable, reward: Floats, pool: Ints, settings: IgpoSettings) -> Floats:
    alone = (table.group_size == 1)[table.turn_group]
    if settings.singleton == "error":
        # Only for the refusal: the members of a group are its trajectories, with any pools.
        normalise(table.score, table.group, singleton="error", names=table.group_ids)
    weights = table.turn_weights(settings.weighting)
    z = normalise(reward, pool, weights, std=settings.std, eps=settings.eps, floor=VARIANCE_FLOOR)
    return z if settings.singleton == "raw" else np.where(alone, 0.0, z)


def _uncentred(table: CreditTable, reward: Floats, pool: Ints, settings: IgpoSettings) -> Floats:
    """reward / deviation of its pool; of a single value the value itself, if `singleton` is raw, else 0."""
    weights = table.turn_weights(settings.weighting)
    centred = _normalised(table, reward, pool, settings.model_copy(update={"std": "none"}))
    scale = deviation(centred, pool, weights, std=settings.std, eps=settings.eps, floor=VARIANCE_FLOOR)
    if settings.singleton == "raw":
        scale[np.bincount(pool) == 1] = 1 + settings.eps
    return reward / scale[pool]


def _scale(z: Floats, last: Bools) -> float:
    """Returns the factor that scales the mean |z| of the gains to that of the outcomes, over the whole batch."""
    gains, outcomes = np.abs(z[~last]), np.abs(z[last])
    if not len(gains) or gains.mean() == 0:
        return 1.0
    return float(min(max(SMALLEST_SCALE, outcomes.mean()) / gains.mean(), LARGEST_SCALE))
