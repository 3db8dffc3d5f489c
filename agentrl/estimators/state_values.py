"""Values of states, counted instead of learned: the mean return of the turns that acted on a state."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.normalise import Discount
from agentrl.estimators.parted import parted
from agentrl.estimators.table import CreditTable

KEY_BYTES = 16
"""Length of the digest that stands for a task and a state of any size."""


class CountedStates(BaseModel):
    """Settings of an estimator that reads counted values of states.

    Attributes:
        gamma: discount per turn of the returns that are counted.
        decay: share of the sums and counts of a state that each later iteration keeps. 0: values come from the batch
            alone; 1: every earlier return counts as much as a new one.
        max_states: number of states that are remembered at most. Those that were not met for the longest time are
            forgotten first. A state takes 54 bytes of a checkpoint.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gamma: Discount = 0.95
    decay: Discount = 0.0
    max_states: int = Field(100_000, gt=0)


class StateValues:
    """Remembers the returns of states between iterations, with decay.

    A state belongs to its task (and to the role, where roles are compared apart). The same episodes in another order
    give the same values: within an iteration only sums and counts matter, and states of equal age are forgotten in the
    order of their digests.
    """

    def __init__(self, settings: CountedStates) -> None:
        self._settings = settings
        # Digest -> sum and count of the returns, as of the iteration in which the state was last met. Oldest first.
        self._known: dict[bytes, tuple[float, float, int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, table: CreditTable, iteration: int) -> tuple[Floats, dict[str, float]]:
        """Counts the returns of an iteration.

        Returns:
            The value of the state that each turn acted on, over this iteration and earlier ones [n_turns], and metrics:
            `known_states`, the share of this batch's states that earlier iterations had met, and
            `remembered_states`, the number of states that are kept.
        """
        seats = table.seats
        seated = None if seats is None else parted(table, seats)
        value, known = self._counted(table if seated is None else seated.table, iteration)
        metrics = {"known_states": known, "remembered_states": float(len(self))}
        return (value if seated is None else seated.turn_whole(value)), metrics

    def _counted(self, table: CreditTable, iteration: int) -> tuple[Floats, float]:
        states = _states_of(table)
        fresh_sums, fresh_counts = _counts(states.index, table.returns(self._settings.gamma))
        sums, counts, keys = fresh_sums.tolist(), fresh_counts.tolist(), states.digests(table)
        decay, known, met = self._settings.decay, self._known, 0
        for at in sorted(range(len(keys)), key=keys.__getitem__):
            if (before := known.pop(keys[at], None)) is not None:
                total, count, seen = before
                kept = decay ** (iteration - seen)
                sums[at] += kept * total
                counts[at] += kept * count
                met += 1
            known[keys[at]] = sums[at], counts[at], iteration
        for old in list(known)[: max(len(known) - self._settings.max_states, 0)]:
            del known[old]
        return (np.array(sums) / np.array(counts))[states.index], met / max(len(keys), 1)

    def state_dict(self) -> dict[str, Any]:
        """JSON values for `load_state_dict`: columns in base64, in the order of age."""
        columns = np.array([*self._known.values()], "<f8").reshape(-1, 3)
        return {"keys": _text(b"".join(self._known)), "counts": _text(columns.tobytes())}

    def load_state_dict(self, state: dict[str, Any], iteration: int) -> None:
        """Restores a result of `state_dict`.

        Args:
            iteration: of the update that comes next.

        Raises:
            ValueError: the state is damaged, or not of this training.
        """
        keys = b64decode(state["keys"], validate=True)
        columns = np.frombuffer(b64decode(state["counts"], validate=True), "<f8").reshape(-1, 3)
        if len(keys) != KEY_BYTES * len(columns):
            raise ValueError(f"{len(keys)} bytes of keys for {len(columns)} remembered states")
        total, count, seen = columns.T
        if not (np.isfinite(total) & (count > 0) & np.isfinite(count) & (seen >= 0) & (seen < max(iteration, 1))).all():
            raise ValueError(f"a remembered state that no iteration before {iteration} can have counted")
        self._known = {
            keys[k * KEY_BYTES : (k + 1) * KEY_BYTES]: (total, count, int(seen))
            for k, (total, count, seen) in enumerate(columns.tolist())
        }


def batch_values(table: CreditTable, gamma: float) -> Floats:
    """The value of the state that each turn acted on, over the batch alone [n_turns]."""
    index = _states_of(table).index
    sums, counts = _counts(index, table.returns(gamma))
    return (sums / counts)[index]


def visits(table: CreditTable) -> Ints:
    """Number of turns of the batch that met each state [n_states]."""
    return np.bincount(_states_of(table).index)


def shared_states(table: CreditTable) -> float:
    """Share of the turns whose state was met by another trajectory of the task; a turn without a state key counts as
    one that was not.
    """
    if not table.n_turns:
        return 0.0
    keyed, index = table.state >= 0, _states_of(table).index
    met = np.unique(index[keyed] * table.n_trajectories + table.trajectory[keyed]) // table.n_trajectories
    trajectories = np.bincount(met, minlength=int(index.max()) + 1)
    return float(np.mean(keyed & (trajectories[index] > 1)))


class _States:
    """The states of a table, each in its task. Turns without a state key share one in each task.

    Attributes:
        pairs: numbers of task and state key, sorted [n_states].
        index: place of each turn's in `pairs` [n_turns].
    """

    def __init__(self, pairs: Ints, index: Ints, tasks: list[str]) -> None:
        self.pairs, self.index, self._tasks = pairs, index, tasks

    def digests(self, table: CreditTable) -> list[bytes]:
        """A key of each state that is the same in every process."""
        # Digests of tasks have one length: no two pairs of a task and a state read the same.
        tasks = [hashlib.blake2b(_digest(task), digest_size=KEY_BYTES) for task in self._tasks]
        texts = [b"-", *(b"+" + text.encode(errors="surrogatepass") for text in table.states)]
        found = []
        for task, state in np.stack(np.divmod(self.pairs, len(texts)), axis=1).tolist():
            key = tasks[task].copy()
            key.update(texts[state])
            found.append(key.digest())
        return found


def _states_of(table: CreditTable) -> _States:
    # A task without an id is its group's alone.
    tasks = [task or group for task, group in zip(table.task_ids or table.group_ids, table.group_ids, strict=True)]
    numbers: dict[str, int] = {}
    task = np.array([numbers.setdefault(name, len(numbers)) for name in tasks], np.int64)
    pair = task[table.turn_group] * (len(table.states) + 1) + table.state + 1
    pairs, index = np.unique(pair, return_inverse=True)
    return _States(pairs, index, [*numbers])


def _counts(index: Ints, returns: Floats) -> tuple[Floats, Floats]:
    return np.bincount(index, returns).astype(np.float64), np.bincount(index).astype(np.float64)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


def _text(column: bytes) -> str:
    return b64encode(column).decode()
