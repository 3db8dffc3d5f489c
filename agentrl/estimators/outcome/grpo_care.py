"""GRPO-CARE: a bonus for correct trajectories whose answer a slow reference finds likely after what they did."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoredNormalisation, broadcast, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class GrpoCareSettings(ScoredNormalisation):
    """Settings of `grpo_care`.

    Attributes:
        bonus: share of its score that a consistent trajectory gets on top.
        margin: how far below the mean consistency of its correct peers it may be.
        upper: consistencies are cut to this, so that certainty alone earns nothing.
        correct_above: least score of a correct trajectory.
    """

    bonus: float = Field(0.5, ge=0)
    margin: float = Field(0.01, ge=0)
    upper: float = Field(0.95, gt=0, le=1)
    correct_above: float = 0.1


@estimator(
    granularity="trajectory",
    source="arXiv:2506.16141; TencentARC/GRPO-CARE grpo_trainer_ref_ema.py",
    certainty="A",
    needs=["ema_logprob"],
    reads=reads_score,
)
def grpo_care(table: CreditTable, settings: GrpoCareSettings) -> Advantages:
    """GRPO on S_i (1 + bonus), if S_i is correct and at least the mean, and p_i >= mean of p over such peers - margin.

    p_i = min(upper, exp(mean log-probability of the tokens of the last turn)) under the moving average of the policy:
    the last turn is the answer, and what is before it is the reasoning. The authors read the text in <answer>.
    """
    score = settings.scores(table)
    members = np.bincount(table.group, minlength=len(table.group_ids))
    mean = np.bincount(table.group, score, len(members)) / np.maximum(members, 1)
    confidence = np.minimum(_of_last_turns(table), settings.upper)
    right = (score > settings.correct_above) & (score >= mean[table.group] - 1e-9) & (table.length > 0)
    peers = np.bincount(table.group[right], confidence[right], len(members))
    level = peers / np.maximum(np.bincount(table.group[right], minlength=len(members)), 1)
    consistent = right & (confidence >= level[table.group] - settings.margin)
    credit = broadcast(table, group_advantage(table, score * (1 + settings.bonus * consistent), settings))
    credit.metrics.update(consistent=float(consistent.mean()) if len(consistent) else 0.0)
    return credit


def _of_last_turns(table: CreditTable) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """exp(mean log-probability) of the last turn of each trajectory; 0 for one without turns."""
    logprob = needed(table.ema_logprob, "ema_logprob")
    sums = np.bincount(table.token_turn, logprob, table.n_turns)
    turns = np.exp(sums / np.maximum(table.tokens, 1))
    found = np.zeros(table.n_trajectories)
    some = table.length > 0
    found[some] = turns[table.offsets[1:][some] - 1]
    return found
