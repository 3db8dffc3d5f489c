"""Environments with Gymnasium's `reset(seed)` and `step(action)`: of gymnasium or of a recipe."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.tools.builtin.games.play import MoveFailed, Play, Step, numbered
from agentrl.types.errors import ToolError

WON = ("success", "is_success", "tasksuccess", "won")
"""Keys of a step's info that mark a solved task."""
_COLOURED = re.compile(r"\x1b\[4\dm(.*?)\x1b\[0m")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ResetStep(Play):
    """Environment with `reset` and `step`.

    `reset` returns an observation, or `(observation, info)`; `step` returns `(observation, reward, done, info)` or
    `(observation, reward, terminated, truncated, info)`. Observations other than strings are shown by `env.render()`
    if `render_mode` is `ansi`, else by `str`. In a discrete action space, a move is a number or one of `actions`.

    Args:
        actions: names of the actions of a discrete space, in order.
    """

    def __init__(self, env: Any, actions: Sequence[str] | None = None) -> None:
        self._env = env
        self.actions = [*actions] if actions else None
        self._takes_seed = "seed" in inspect.signature(env.reset).parameters
        space: Any = getattr(env, "action_space", None)
        self._count = int(space.n) if type(space).__name__ == "Discrete" else None
        self._first = int(getattr(space, "start", 0)) if self._count is not None else 0

    @property
    def env(self) -> Any:
        """The environment."""
        return self._env

    def reset(self, seed: int) -> str:
        """Begins a game. The seed is ignored if the environment's `reset` takes none."""
        seeded = {"seed": seed} if self._takes_seed else {}
        found = self._env.reset(**seeded)
        with_info = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)
        return self._shown(found[0] if with_info else found)

    def step(self, action: str) -> Step:
        """Makes a move. The error for an unknown discrete action lists the known ones."""
        return self._read(self._env.step(self._move(action)))

    def _read(self, found: Any) -> Step:
        if not isinstance(found, tuple) or len(found) not in (4, 5):
            raise MoveFailed(
                f"{type(self._env).__name__}.step returned {found!r:.80}",
                remedy="return (observation, reward, terminated, truncated, info)",
            )
        observation, reward, *ended, info = found
        says = next((bool(info[key]) for key in WON if isinstance(info, Mapping) and key in info), None)
        return Step(self._shown(observation), float(reward), any(map(bool, ended)), says)

    def close(self) -> None:
        """Closes the environment if it has `close`."""
        if hasattr(self._env, "close"):
            self._env.close()

    def _move(self, action: str) -> Any:
        if self._count is None:
            return action
        word = action.strip()
        if self.actions is not None and word in self.actions:
            return self._first + self.actions.index(word)
        if self.actions is None and numbered(word, self._first, self._first + self._count):
            return int(word)
        known = self.actions or [f"{self._first} to {self._first + self._count - 1}"]
        raise ToolError(f"there is no action {word[:60]!r}; there are: {', '.join(known)}")

    def _shown(self, observation: Any) -> str:
        if isinstance(observation, str):
            return observation
        if getattr(self._env, "render_mode", None) == "ansi":
            return _COLOUR.sub("", _COLOURED.sub(r"[\1]", str(self._env.render()))).strip("\n")
        return str(observation)


class AsyncStep(ResetStep):
    """Environment of a recipe with an `async def step`."""

    async def step(self, action: str) -> Step:  # type: ignore[override]  # as `Play` says
        """Makes a move, in the event loop."""
        return self._read(await self._env.step(self._move(action)))
