"""Small tables with every column, for tests that hold for any estimator."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agentrl.estimators.estimator import Advantages
from agentrl.estimators.history import History
from agentrl.estimators.registry import ESTIMATORS
from agentrl.estimators.table import OPTIONAL, CreditTable
from agentrl.types.errors import CreditError

BUILT_IN = ESTIMATORS.all()


class Step(NamedTuple):
    """A turn: state key, immediate reward, sampled tokens."""

    state: str | None
    reward: float
    tokens: int


class Member(NamedTuple):
    """A trajectory: group id, outcome, turns."""

    group: str
    score: float
    steps: Sequence[Step]


def table_of(members: Sequence[Member], ids: Sequence[str] | None = None) -> CreditTable:
    """The table of trajectories; `ids` are the episodes' and default to their places."""
    steps = [step for member in members for step in member.steps]
    return CreditTable.from_columns(
        episode=list(ids or map(str, range(len(members)))),
        group=[member.group for member in members],
        score=[member.score for member in members],
        length=[len(member.steps) for member in members],
        state=[step.state for step in steps],
        reward=[step.reward for step in steps],
        tokens=[step.tokens for step in steps],
    )


def with_everything(table: CreditTable) -> CreditTable:
    """The table with all optional columns, whose entries depend on the episodes' ids alone."""
    drawn: dict[str, list[Any]] = {name: [] for name in OPTIONAL}
    histories = []
    for index, episode in enumerate(table.episode_ids):
        random = np.random.default_rng(zlib.crc32(episode.encode()))
        turns = slice(*table.offsets[index : index + 2])
        tokens = int(table.tokens[turns].sum())
        sizes = {"trajectory": 1, "turn": int(table.length[index]), "token": tokens}
        for name, (unit, kind) in OPTIONAL.items():
            size = sizes[unit]
            drawn[name] += list(random.integers(0, 3, size) if kind is np.int64 else random.random(size))
        histories.append(random.integers(0, 2, tokens))
    for name in (
        "gold_logprob",
        "hindsight_logprob",
        "behaviour_logprob",
        "ref_logprob",
        "teacher_logprob",
        "ema_logprob",
        "prm_logprob",
    ):
        drawn[name] = [-value for value in drawn[name]]
    drawn["span_end"] = [value > 0.5 for value in drawn["span_end"]]
    drawn["span_reward"] = [value * end for value, end in zip(drawn["span_reward"], drawn["span_end"], strict=True)]
    position = [np.arange(len(history)) for history in histories]
    history = History(histories, np.concatenate([np.zeros(0, np.int64), *position]))
    return dataclasses.replace(table.with_columns(**drawn), history=lambda: history)


def run(name: str, table: CreditTable, **settings: Any) -> Advantages:
    """Runs a built-in estimator; settings that it does not have are left out.

    A table without state keys cannot be had from everybody: those estimators give nothing.
    """
    estimator = BUILT_IN[name]
    known = {key: value for key, value in settings.items() if key in estimator.settings.model_fields}
    if "weighting" in known and name in ("step_grpo", "rank_grpo"):
        del known["weighting"]
    try:
        return estimator(table, estimator.settings(**known))
    except CreditError as error:
        if "no turn has a recorded state" not in error.message:
            raise
        return Advantages(np.zeros(table.n_turns))
