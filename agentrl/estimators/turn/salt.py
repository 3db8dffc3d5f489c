"""SALT: equal steps of several trajectories of a group share their credit."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats, Ints, combine
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoredNormalisation, centred_score, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed

Part = Literal["state", "action", "next_state"]


class SaltSettings(ScoredNormalisation):
    """Settings of `salt`. `std`, `weighting` and `singleton` are those of the base advantage.

    Attributes:
        base: the advantage of a trajectory before steps are merged: `grpo`, or `rloo` (leave-one-out, never divided by
            `std`).
        key: which steps are the same edge.
        history: number of preceding (state, action) pairs that must be equal, too; null: all.
        count: the unit of the mean of an edge: each `occurrence`, or each `trajectory` once.
    """

    base: Literal["grpo", "rloo"] = "grpo"
    key: tuple[Part, ...] = Field(("state", "action", "next_state"), min_length=1)
    history: Annotated[int, Field(ge=0)] | None = 0
    count: Literal["occurrence", "trajectory"] = "occurrence"


@estimator(
    granularity="turn",
    source="arXiv:2510.20022, from its abstract and secondary summaries; no code published",
    certainty="C",
    needs=["state", "action"],
    reads=reads_score,
)
def salt(table: CreditTable, settings: SaltSettings) -> Advantages:
    """A_{i,t} = mean of A_k over the occurrences of the step's edge in the group; an edge of one trajectory keeps A_i.

    An edge is (state, action, next state), a node a state; a step that many trajectories took, successful or not,
    carries little signal. The next state of a last turn is "end". A turn without a state key shares with no other turn.
    """
    base = _base(table, settings)[table.trajectory]
    edge = edges(table, settings.key, settings.history)
    passing = combine(edge, table.trajectory)
    weights = np.ones(table.n_turns)
    if settings.count == "trajectory":
        weights /= np.bincount(passing)[passing]
    mean = np.bincount(edge, weights * base) / np.bincount(edge, weights)
    # An edge is merged where more than one (edge, trajectory) pair has it.
    first_pass = np.unique(passing, return_index=True)[1]
    merged = np.bincount(edge[first_pass])[edge] > 1
    advantage = np.where(merged, mean[edge], base)
    return Advantages(
        advantage,
        parts={"episode": base, "merged": advantage - base},
        metrics={"merged_edges": float(merged.mean())},
    )


def _base(table: CreditTable, settings: SaltSettings) -> Floats:
    if settings.base == "grpo":
        return group_advantage(table, settings.scores(table), settings)
    others = np.maximum(table.group_size - 1, 1)
    factor = np.where(table.group_size > 1, table.group_size / others, 1.0)[table.group]
    return factor * centred_score(table, settings.scores(table), settings)


def edges(table: CreditTable, key: tuple[Part, ...], history: int | None) -> Ints:
    """Index of every turn's edge, the same for the same key in the same group [n_turns]."""
    action = needed(table.action, "action")
    last = table.turns_left == 0
    columns = {
        "state": table.state,
        "action": action,
        # -2: the end, which differs from all states and from a missing key.
        "next_state": np.where(last, -2, np.append(table.state[1:], -1)),
    }
    edge = table.turn_group
    for part in key:
        edge = combine(edge, columns[part])
    pair = combine(table.state, action)
    longest = int(table.length.max(initial=0)) - 1
    if history is None:
        edge = combine(edge, _paths(table, pair))
    else:
        for back in range(1, min(history, longest) + 1):
            earlier = np.append(np.zeros(back, np.int64), pair[:-back])
            edge = combine(edge, np.where(table.turn >= back, earlier, -1))
    # A turn without a key gets its own edge.
    return combine(edge, np.where(table.state >= 0, -1, np.arange(table.n_turns)))


def _paths(table: CreditTable, pair: Ints) -> Ints:
    """Index of the pairs that came before each turn, one number for the same path [n_turns]."""
    path = np.full(table.n_turns, -1)
    for turn in range(1, int(table.length.max(initial=0))):
        at = np.flatnonzero(table.turn == turn)
        # Distinct over all turns: paths of different lengths differ.
        path[at] = combine(path[at - 1], pair[at - 1]) + turn * table.n_turns
    return path
