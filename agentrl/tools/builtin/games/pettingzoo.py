"""Games of PettingZoo with sequential moves (AEC)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.tools.builtin.games.own_random import OwnRandom
from agentrl.tools.builtin.games.play import Match, numbered
from agentrl.types.errors import ToolError


class PettingZoo(Match):
    """AEC environment of PettingZoo, by its module: `classic.connect_four_v3`. Moves are numbers."""

    def __init__(self, id: str, kwargs: Mapping[str, Any]) -> None:
        module = importlib.import_module(f"pettingzoo.{id}")
        self._env, self._random = module.env(**kwargs), OwnRandom()

    @property
    def env(self) -> Any:
        """The environment."""
        return self._env

    @property
    def turn(self) -> int:  # type: ignore[override]
        """Player to move."""
        return int(self._names.index(self._env.agent_selection))

    @property
    def done(self) -> bool:  # type: ignore[override]
        """True if the game has ended for the player to move."""
        if not self._env.agents:
            return True
        name = self._env.agent_selection
        return bool(self._env.terminations[name] or self._env.truncations[name])

    def reset(self, seed: int) -> None:
        """Begins a game."""
        with self._random:
            self._random.seed(seed)
            self._env.reset(seed=seed)
        self._names = list(self._env.possible_agents)
        self.players, self._scores = len(self._names), [0.0] * len(self._names)

    def seen(self, player: int) -> str:
        """Returns the player's observation and, on its turn, the legal moves."""
        if self._env.render_mode == "ansi":
            text = str(self._env.render())
        else:
            found = self._env.observe(self._names[player])
            text = str(found["observation"] if isinstance(found, Mapping) and "observation" in found else found)
        mine = not self.done and self.turn == player
        return f"{text}\nMoves: {', '.join(self.moves())}" if mine and self.moves() else text

    def moves(self) -> Sequence[str]:
        """Returns the legal moves if the environment provides an action mask."""
        found = self._env.observe(self._env.agent_selection)
        mask = found.get("action_mask") if isinstance(found, Mapping) else None
        if mask is None:
            mask = (self._env.infos.get(self._env.agent_selection) or {}).get("action_mask")
        return [str(number) for number, legal in enumerate(mask) if legal] if mask is not None else ()

    def step(self, action: str) -> None:
        """Makes a move."""
        word, moves = action.strip(), self.moves()
        count = int(self._env.action_space(self._env.agent_selection).n)
        legal = word in moves if moves else numbered(word, 0, count)
        if not legal:
            raise ToolError(f"{word[:60]!r} is no move now; there are: {', '.join(moves) or f'0 to {count - 1}'}")
        with self._random:
            self._env.step(int(word))
        for player, name in enumerate(self._names):
            self._scores[player] += float(self._env.rewards.get(name, 0.0))

    @property
    def scores(self) -> Sequence[float]:
        """Rewards so far."""
        return self._scores

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()
