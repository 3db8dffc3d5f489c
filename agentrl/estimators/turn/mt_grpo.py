"""MT-GRPO: turn rewards and the outcome, each normalised over the group, then added up."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import discounted
from agentrl.estimators.estimator import Advantages, Reward, estimator
from agentrl.estimators.normalise import Normalisation, normalise
from agentrl.estimators.score import group_advantage
from agentrl.estimators.table import CreditTable


class MtGrpoSettings(Normalisation):
    """Settings of `mt_grpo`.

    Attributes:
        form: `two_turns` follows the authors' code: a reward of the first turn, credited to the first turn only.
            `general` takes the rewards of all turns; it is our reading of the paper, not verified.
        coef: weight of the turn part.
    """

    eps: float = Field(1e-4, ge=0, allow_inf_nan=False)
    form: Literal["two_turns", "general"] = "two_turns"
    coef: float = Field(1.0, allow_inf_nan=False)


def _reads(settings: MtGrpoSettings) -> tuple[Reward, ...]:
    return ("outcome", "turns") if settings.form == "general" else ("outcome", "first_turn")


@estimator(
    granularity="turn",
    source="arXiv:2505.11821; SiliangZeng/Multi-Turn-RL-Agent@7dbdd08 mt_grpo_env_trainer.py; `general` is our reading",
    certainty="A",
    reads=_reads,
)
def mt_grpo(table: CreditTable, settings: MtGrpoSettings) -> Advantages:
    """A_t = A^O + coef * A^T_t.

    A^O is the outcome, normalised over the group. `two_turns`: A^T is the normalised reward of the first turn, for the
    first turn only; a trajectory of one turn gets the normalised sum of both rewards instead, as in the authors' code.
    `general`: every turn's reward is normalised over all turns of the group (not by turn index: which turns exist is
    the policy's choice), and A^T_t sums it over turn t and the later ones.
    """
    outcome = group_advantage(table, table.score, settings)[table.trajectory]
    if settings.form == "general":
        members = np.bincount(table.group[table.length > 0], minlength=table.n_groups)
        z = normalise(
            table.reward,
            table.turn_group,
            table.turn_weights(settings.weighting),
            std=settings.std,
            singleton=settings.singleton,
            eps=settings.eps,
            members=members,
        )
        turn = settings.coef * discounted(z, table.turns_left, 1.0)
        return Advantages(outcome + turn, parts={"outcome": outcome, "turn": turn})
    first, single = table.turn == 0, (table.length == 1)[table.trajectory]
    opening = np.zeros(table.n_trajectories)
    opening[table.length > 0] = table.reward[first]
    turn = np.where(first, settings.coef * group_advantage(table, opening, settings)[table.trajectory], 0.0)
    combined = group_advantage(table, table.score + opening, settings)[table.trajectory]
    # One turn, no tool result: the outcome's part is 0 and the combined reward replaces both.
    turn = np.where(single, combined, turn)
    outcome = np.where(single, 0.0, outcome)
    return Advantages(outcome + turn, parts={"outcome": outcome, "turn": turn})
