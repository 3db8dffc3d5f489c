"""Separate state of the global random generators per game: many environments seed and use `random` directly."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any

import numpy as np

_LOCK = threading.RLock()


class OwnRandom:
    """Swaps in the game's own state of `random` and `numpy.random` and excludes other games meanwhile.

    Without it, concurrent games would draw from each other's seeds.
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
        """Seeds both generators. Call it inside the context."""
        random.seed(seed)
        np.random.seed(seed % 2**32)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _use(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
