"""TEMPO: the value of a token prefix is the mean score of the group's trajectories that share it."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.history import prefix_values
from agentrl.estimators.normalise import deviation, normalise
from agentrl.estimators.score import ScoredNormalisation, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class TempoSettings(ScoredNormalisation):
    """Settings of `tempo`. Only groups with tokens in common differ from `grpo`."""


@estimator(
    granularity="token",
    source="arXiv:2509.18314; fatebreaker/tempo@0a1c273 compute_tempo_outcome_advantage",
    certainty="A",
    needs=["history"],
    reads=reads_score,
)
def tempo(table: CreditTable, settings: TempoSettings) -> Advantages:
    """A_k = (S - mean + V(prefix with token k) - V(prefix before it)) / (std + eps).

    V is the mean score of the group's trajectories that start with the prefix, observations included: a difference that
    an observation makes is the environment's luck, and no sampled token gets it. Where no trajectories part, this is
    GRPO. The authors' code stops at the first token that is not trained on, and gives NaN to a group of one, which
    follows `singleton` here.
    """
    history = needed(table.history, "history")
    score = settings.scores(table)
    sampled = np.diff(table.token_offsets[table.offsets])
    before, after = prefix_values(history(), table.group, score, sampled)
    group = group_advantage(table, score, settings)[table.trajectory]
    weights = table.trajectory_weights(settings.weighting)
    centred = normalise(score, table.group, weights, std="none")
    scale = deviation(centred, table.group, weights, std=settings.std, eps=settings.eps)[table.turn_group]
    branch = (after - before) / scale[table.token_turn]
    token = group[table.token_turn] + branch
    turn = table.turn_mean(branch)
    spoken = np.where(table.tokens > 0, group, 0.0)
    metrics = {"branching_tokens": float(np.mean(branch != 0)) if len(branch) else 0.0}
    return Advantages(spoken + turn, token, parts={"episode": spoken, "branch": turn}, metrics=metrics)
