"""80/20: trains only the tokens at which the policy had high entropy."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoredNormalisation, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class HighEntropySettings(ScoredNormalisation):
    """Settings of `high_entropy`, and of the masked `grpo` advantage.

    Attributes:
        share: share of the batch's sampled tokens, of the highest entropy, that keep their advantage.
        denominator: the divisor of a token mean of the loss: the `selected` tokens (the authors' code) or `all` (TRL).
            The trainer counts all, so `selected` multiplies the remaining advantages by all / selected.
    """

    share: float = Field(0.2, gt=0, le=1)
    denominator: Literal["selected", "all"] = "selected"


@estimator(
    granularity="token",
    source="arXiv:2506.01939; Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR@6f5dda6",
    certainty="A",
    needs=["entropy"],
    reads=reads_score,
)
def high_entropy(table: CreditTable, settings: HighEntropySettings) -> Advantages:
    """The advantage of `grpo` at the ceil(share * n) tokens of the highest entropy, 0 at the others.

    The selection is made over the whole batch (the authors make it in each micro-batch). All tokens with the entropy of
    the border are selected, so that their order does not matter.
    """
    entropy = needed(table.entropy, "entropy")
    group = group_advantage(table, settings.scores(table), settings)[table.trajectory]
    chosen = math.ceil(settings.share * table.n_tokens)
    border = np.partition(entropy, -chosen)[-chosen] if chosen else np.inf
    kept = entropy >= border
    factor = len(kept) / max(int(kept.sum()), 1) if settings.denominator == "selected" else 1.0
    token = np.where(kept, factor * group[table.token_turn], 0.0)
    return Advantages(table.turn_mean(token), token, metrics={"entropy_border": float(border)} if chosen else {})
