"""Environments that run in Java processes (py4j): textworld-express and ScienceWorld."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentrl.types.errors import RecipeError


def require_java() -> None:
    """Raises RecipeError: there is no Java."""
    if shutil.which("java") is None:
        remedy = "apt-get install --no-install-recommends default-jre-headless"
        raise RecipeError("there is no program 'java'", remedy=remedy)


class JavaGames:
    """Environments with a Java process each, kept for the next game: starting one takes about a second.

    Two games of one process would disturb each other: their worlds are made of what is static in Java.

    Args:
        start: makes an environment, with its process in `_gateway.java_process`.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start, self._lock = start, threading.Lock()
        self._idle: list[Any] = []

    def take(self) -> Any:
        """An environment that nobody else plays.

        Raises:
            RecipeError: there is no Java.
        """
        with self._lock:
            while self._idle:
                env = self._idle.pop()
                if env._gateway.java_process.poll() is None:
                    return env
        require_java()
        return self._start()

    def give(self, env: Any) -> None:
        """Takes an environment back, for the next game."""
        with self._lock:
            self._idle.append(env)

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """An environment for a while."""
        env = self.take()
        yield env
        self.give(env)
