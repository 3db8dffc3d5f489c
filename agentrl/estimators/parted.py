"""A table with a trajectory for each seat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.history import History
from agentrl.estimators.seats import Seats
from agentrl.estimators.table import UNITS, CreditTable


@dataclass(frozen=True)
class Parted:
    """A table with one trajectory per seat.

    Attributes:
        turns, tokens: indices of its turns and tokens in the whole table.
    """

    table: CreditTable
    turns: Ints
    tokens: Ints

    def turn_whole(self, column: Floats) -> Floats:
        """Reorders a column [n_turns] to the whole table."""
        return _placed(column, self.turns)

    def token_whole(self, column: Floats | None) -> Floats | None:
        """Reorders a column [n_tokens] to the whole table."""
        return None if column is None else self.whole(column)

    def whole(self, column: Floats) -> Floats:
        """Reorders a column [n_tokens] that there is."""
        return _placed(column, self.tokens)


def parted(table: CreditTable, seats: Seats) -> Parted:
    """The table with a trajectory for each seat, and a group for each role that is compared with itself."""
    piece = np.unique(np.stack([table.trajectory, seats.seat]), axis=1, return_inverse=True)[1].ravel()
    turns = np.argsort(piece, kind="stable")
    first = np.unique(piece, return_index=True)[1]
    silent = np.flatnonzero(table.length == 0)
    owner = np.concatenate([table.trajectory[first], silent])
    role = np.concatenate([seats.role[first], np.full(len(silent), -1)])
    group = np.unique(np.stack([table.group[owner], role]), axis=1, return_inverse=True)
    ranks = np.empty(table.n_turns, np.int64)
    ranks[turns] = np.arange(table.n_turns)
    tokens = np.argsort(ranks[table.token_turn], kind="stable")
    places: dict[str, Ints] = {"trajectory": owner, "turn": turns, "token": tokens}
    columns = {
        name: column[places[unit]] for name, unit in UNITS.items() if (column := getattr(table, name)) is not None
    }
    whole = table.history
    made = replace(
        table,
        group_ids=[_name(table.group_ids[g], seats.names, r) for g, r in group[0].T.tolist()],
        task_ids=None
        if table.task_ids is None
        else [task and _name(task, seats.names, r) for g, r in group[0].T.tolist() for task in [table.task_ids[g]]],
        episode_ids=[_name(table.episode_ids[e], seats.names, r) for e, r in zip(owner, role, strict=True)],
        **{
            **columns,
            "group": group[1].ravel(),
            "score": np.concatenate([seats.score[first], table.score[silent]]),
            "length": np.concatenate([np.bincount(piece, minlength=len(first)), np.zeros(len(silent), np.int64)]),
        },
        history=None if whole is None else lambda: _history(whole(), owner, tokens),
        seats=None,
    )
    return Parted(made, turns, tokens)


def _history(whole: History, owner: Ints, tokens: Ints) -> History:
    return History([whole.tokens[each] for each in owner.tolist()], whole.position[tokens])


def _name(name: str, roles: Sequence[str], role: int) -> str:
    return name if role < 0 else f"{name}@{roles[role]}"


def _placed(column: Floats, places: Ints) -> Floats:
    whole = np.empty_like(column)
    whole[places] = column
    return whole
