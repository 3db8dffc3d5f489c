"""SWEET-RL: turns get the advantage that a critic of preferences gives them, which may see the reference answer."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Normalisation, normalise
from agentrl.estimators.table import CreditTable, Weighting, needed


class SweetSettings(Normalisation):
    """Settings of `sweet`: the normalisation over all turns of the group."""

    weighting: Weighting = "turn"


@estimator(
    granularity="turn",
    source="arXiv:2503.15478 Eq. 2 and 3, as transcribed by others; facebookresearch/sweet_rl@38daf2a calls a trainer "
    "that is not published with it",
    certainty="B",
    needs=["prm_logprob", "ref_logprob"],
    reads=(),
)
def sweet(table: CreditTable, settings: SweetSettings) -> Advantages:
    """A_t = (a_t - mean) / (std + eps) over the turns of the group; a_t = mean over the turn's tokens of the log-ratio
    of the critic to the reference.

    The critic is `train.reward_model: {objective: preference, reward: turn_means, sees: answer}`. The reward is not
    read here: the critic learns from it. Turns that are not trained get 0.

    Differs from the authors' method: they sample 16 replies for each turn of stored episodes, rank them by a_t, and
    train the policy on pairs of the better and the worse half (DPO). Here a_t is the credit of the turn that was
    played.
    """
    ratio = needed(table.prm_logprob, "prm_logprob") - needed(table.ref_logprob, "ref_logprob")
    trained = table.tokens > 0
    value = table.turn_mean(ratio)
    advantage = np.zeros(table.n_turns)
    advantage[trained] = normalise(
        value[trained],
        table.turn_group[trained],
        table.turn_weights(settings.weighting)[trained],
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        members=np.bincount(table.group[table.length > 0], minlength=table.n_groups),
        names=table.group_ids,
    )
    metrics = {"critic_spread": float(value[trained].std())} if trained.any() else {}
    return Advantages(advantage, parts={"critic": advantage}, metrics=metrics)
