"""The score S_i of a trajectory, which trajectory estimators compare."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.estimator import Advantages, Reward
from agentrl.estimators.normalise import Baseline, Normalisation, Singleton, centre, normalise
from agentrl.estimators.table import CreditTable


class ScoreSettings(BaseModel):
    """Settings of an estimator that reads one score per trajectory.

    Attributes:
        score: `outcome`: the reward of the whole trajectory, as published. `total`: the outcome plus the immediate
            rewards of its turns.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    score: Literal["outcome", "total"] = "outcome"

    def scores(self, table: CreditTable) -> Floats:
        """S_i [n_trajectories]."""
        return table.score if self.score == "outcome" else table.total_reward


def reads_score(settings: ScoreSettings) -> tuple[Reward, ...]:
    """The rewards read by an estimator that compares these scores."""
    return ("outcome",) if settings.score == "outcome" else ("outcome", "turns")


def reads_verdict(settings: ScoreSettings) -> tuple[Reward, ...]:
    """The rewards read by an estimator that uses the score as right or wrong."""
    return ("verdict",) if settings.score == "outcome" else ("verdict", "turns")


class ScoredBaseline(Baseline, ScoreSettings):
    """Settings of an estimator that subtracts a baseline of the group from the score."""


class ScoredNormalisation(Normalisation, ScoreSettings):
    """Settings of an estimator that normalises the score within the group."""


def group_advantage(table: CreditTable, score: Floats, settings: Normalisation) -> Floats:
    """Scores of trajectories, normalised over their groups [n_trajectories]."""
    return normalise(
        score,
        table.group,
        table.trajectory_weights(settings.weighting),
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        names=table.group_ids,
    )


def centred_score(table: CreditTable, score: Floats, settings: Baseline) -> Floats:
    """Scores of trajectories minus the mean of their group [n_trajectories]."""
    weights = table.trajectory_weights(settings.weighting)
    return centre(score, table.group, weights, singleton=settings.singleton, names=table.group_ids)


def settle_singletons(table: CreditTable, advantage: Floats, raw: Floats, singleton: Singleton) -> Floats:
    """`advantage`, but `raw` or 0 for groups of one [n_trajectories].

    Raises:
        CreditError: `singleton` is `error` and some group has one member.
    """
    ones = np.ones(table.n_trajectories)
    kept = centre(raw, table.group, ones, singleton=singleton, names=table.group_ids)
    return np.where(table.group_size[table.group] == 1, kept, advantage)


def rank_in_group(table: CreditTable, *keys: Floats) -> Ints:
    """Rank of a trajectory within its group, by a key, where there is one, and by episode id [n_trajectories]."""
    order = np.lexsort((np.array(table.episode_ids), *keys, table.group))
    first = np.searchsorted(table.group[order], np.arange(table.n_groups))
    rank = np.empty(table.n_trajectories, np.int64)
    rank[order] = np.arange(table.n_trajectories) - first[table.group[order]]
    return rank


def broadcast(table: CreditTable, advantage: Floats) -> Advantages:
    """One advantage per trajectory, given to all its turns."""
    turn = advantage[table.trajectory]
    return Advantages(turn, parts={"episode": turn})
