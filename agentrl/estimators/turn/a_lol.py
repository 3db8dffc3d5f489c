"""A-LoL: the outcome against a critic's value of the prompt; only what is better than expected trains."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoreSettings, broadcast, reads_score
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.gae import fit_of


class AlolSettings(ScoreSettings):
    """Settings of `a_lol`.

    Attributes:
        keep: `positive`: trajectories that are worse than expected have the advantage 0, and do not train. `all`: they
            keep their negative advantage.
    """

    keep: Literal["positive", "all"] = "positive"


@estimator(
    granularity="trajectory",
    source="arXiv:2305.14718; abaheti95/LoL-RL@223df72 lolrl_qlora_llama_hh.py",
    certainty="A",
    needs=["value"],
    reads=reads_score,
)
def a_lol(table: CreditTable, settings: AlolSettings) -> Advantages:
    """A_i = max(0, S_i - V(prompt)): the whole trajectory is one action. Needs no group, so that any data will do.

    V is the critic's value of the state in which the first token was sampled, the only one that it learns at. A-LoL's
    critic is that of the reference policy: let it learn first (`train.critic: {body: copy, warmup: 10}`), and train
    with `train.loss: a_lol`.
    """
    critic = needed(table.value, "value")
    score = settings.scores(table)
    first, end = table.token_offsets[table.offsets[:-1]], table.token_offsets[table.offsets[1:]]
    spoken = end > first
    value = np.zeros(table.n_trajectories)
    value[spoken] = critic[first[spoken]]
    advantage = np.where(spoken, score - value, 0.0)
    if settings.keep == "positive":
        advantage = np.maximum(advantage, 0.0)
    target = np.full(table.n_tokens, np.nan)
    target[first[spoken]] = score[spoken]
    kept = {"kept_episodes": float(np.mean(advantage != 0))} if len(advantage) else {}
    credit = broadcast(table, advantage)
    return Advantages(credit.turn, value_target=target, metrics={**fit_of(critic, target), **kept})
