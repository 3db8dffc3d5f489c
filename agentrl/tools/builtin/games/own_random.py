"""A state of the global random generators for each game: many environments seed and use `random` itself."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any

import numpy as np

_LOCK = threading.RLock()


class OwnRandom:
    """Inside, the generators of `random` and `numpy.random` are the game's own, and no other game runs.

    Without it, games that run side by side would draw from each other's seeds.
    """

    def __init__(self) -> None:
        self._own: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        _LOCK.acquire()
        self._others = _states()
        if self._own is not None:
            _use(self._own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own = _states()
        _use(self._others)
        _LOCK.release()

    def seed(self, seed: int) -> None:
        """Seeds both generators; to be called inside."""
        random.seed(seed)
        np.random.seed(seed % 2**32)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _use(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
