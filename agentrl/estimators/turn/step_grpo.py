"""GRPO with turns as its members: each step against the same step elsewhere, or with the outcome of its trajectory."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Normalisation, normalise
from agentrl.estimators.score import ScoredNormalisation, broadcast, group_advantage, reads_score
from agentrl.estimators.table import CreditTable
from agentrl.estimators.turn.gigpo import anchor_groups


class StepGrpoSettings(Normalisation):
    """Settings of `step_grpo`. Every turn counts once in its step group, so `weighting` can only be `turn`."""

    weighting: Literal["turn"] = "turn"


class FlowGrpoSettings(ScoredNormalisation):
    """Settings of `flow_grpo`. The paper is `weighting: trajectory`; the code `weighting: turn`, `singleton: raw`."""


@estimator(
    granularity="turn",
    source="OpenBMB/R1-Router@c0a0c1b",
    certainty="A",
    needs=["state"],
    reads=["outcome", "turns"],
)
def step_grpo(table: CreditTable, settings: StepGrpoSettings) -> Advantages:
    """A_{i,t} = (rho_{i,t} - mean) / (std + eps) over the turns of the group that acted on the same state.

    Uses the step's reward, not a return: later turns do not affect earlier ones. In the published code a step is a
    separate prompt with the gold history; here turns that acted on the same state are samples of one prompt. A state
    that occurs once is a group of one, a turn without a state key gets 0.

    The authors' step reward (half cosine of the sub-question, half the right retriever) is the reward `base_routing`.
    """
    anchors = anchor_groups(table)
    keyed = anchors >= 0
    first = np.unique(anchors[keyed], return_index=True)[1]
    names = [table.group_ids[group] for group in table.turn_group[keyed][first]]
    advantage = np.zeros(table.n_turns)
    advantage[keyed] = normalise(
        table.step_reward[keyed],
        anchors[keyed],
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        names=names,
    )
    return Advantages(advantage, parts={"step": advantage})


@estimator(
    granularity="trajectory",
    source="arXiv:2510.05592; lupantech/AgentFlow@b940064",
    certainty="A",
    reads=reads_score,
)
def flow_grpo(table: CreditTable, settings: FlowGrpoSettings) -> Advantages:
    """A_i = (R_i - mean) / (std + eps), for every turn of the trajectory; turns are separate rows.

    It equals `grpo` except for the unit of the statistics. The authors' code counts every turn, so that a long
    trajectory weighs more; their paper counts every trajectory. AgentFlow's planner, executor, verifier and memory
    belong to an agent, and are not implemented.
    """
    return broadcast(table, group_advantage(table, settings.scores(table), settings))
