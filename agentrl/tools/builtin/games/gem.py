"""Games and questions of gem."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from agentrl.tools.builtin.games.own_random import OwnRandom
from agentrl.tools.builtin.games.play import Play, Step
from agentrl.types.errors import TaskError

SOLVED = 1.0 - 1e-6
"""Threshold for a solved task: rewards of gem's environments sum to 1 if solved, else to less."""


EVALUATED = (
    *(
        f"rg:{kind}"
        for kind in (
            "binary_matrix", "n_queens", "spiral_matrix", "string_insertion", "countdown", "puzzle24", "composite",
            "intermediate_integration", "polynomial_multiplication", "simple_integration", "coin_flip",
        )
    ),
    "math:", "code:", "eval:",
)  # fmt: skip
"""Beginnings of the ids of environments that hand what the model writes to `eval`, directly or by sympy, that run it as
a program, or that compute with it for ever (`1e99999999` as a fraction)."""


class Gem(Play):
    """Environment of gem. Moves are texts; most games read the content of `\\boxed{}`.

    gem leaves the board out of the observation: its wrappers add `prefix` and `suffix` of the step's info. Both are
    shown here too, until the end.
    """

    def __init__(self, id: str, kwargs: Mapping[str, Any]) -> None:
        if id.startswith(EVALUATED):
            raise TaskError(
                f"gem: {id} lets Python evaluate what the model writes, and in this process that can do anything",
                place="tools: game.id",
                remedy="recipes/puzzles grades such answers in processes of their own; or choose another",
            )
        self._random = OwnRandom()
        with self._random:  # most of gem's environments draw a game in the constructor
            try:
                self._env = _imported().make(id, **kwargs)
            except LookupError as error:
                raise _no_words(id) if "nltk.download" in str(error) else error from None

    @property
    def env(self) -> Any:
        """The environment."""
        return self._env

    def reset(self, seed: int) -> str:
        """Begins a game. The seed is cut to 32 bits for NumPy's generator."""
        with self._random:
            observation, info = self._env.reset(seed=seed % 2**32)
        self._return = 0.0
        return _shown(observation, info)

    def step(self, action: str) -> Step:
        """Makes a move. Success requires rewards that sum to 1, because gem pays partial rewards."""
        with self._random:
            observation, reward, terminated, truncated, info = self._env.step(action)
        self._return += float(reward)
        done = bool(terminated or truncated)
        text = str(observation) if done else _shown(observation, info)
        return Step(text, float(reward), done, done and self._return >= SOLVED)


def _shown(observation: Any, info: Mapping[str, Any]) -> str:
    parts = [info.get("prefix"), observation, info.get("suffix")]
    return "\n".join(str(part).strip("\n") for part in parts if part)


def _imported() -> Any:
    """Imports gem and restores the root logger, which the import changes."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    import gem

    root.setLevel(level)
    root.handlers[:] = handlers
    return gem


def _no_words(id: str) -> TaskError:
    return TaskError(
        f"gem: {id} draws from NLTK's list of words, which is missing", remedy="python -m nltk.downloader words"
    )
