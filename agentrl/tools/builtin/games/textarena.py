"""Games of textarena, for one or several players."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.tools.builtin.games.own_random import OwnRandom
from agentrl.tools.builtin.games.play import Match

_LISTED = re.compile(r"(?i)\b(?:available|valid|legal) (?:moves|actions):(.*)")
_MOVE = re.compile(r"\[[^\]]+\]")


class TextArena(Match):
    """Game of textarena. The player sees why a move is refused; two in a row lose most games.

    Args:
        players: number of players, for games that allow several numbers.
    """

    def __init__(self, id: str, kwargs: Mapping[str, Any], players: int = 1) -> None:
        import textarena

        self._env = textarena.make(id, **kwargs)
        self.players, self._random, self.done = players, OwnRandom(), False
        self._moves: list[str] = []

    @property
    def env(self) -> Any:
        """The environment."""
        return self._env

    @property
    def turn(self) -> int:  # type: ignore[override]
        """Player to move."""
        return int(self._env.state.current_player_id)

    def reset(self, seed: int) -> None:
        """Begins a game."""
        with self._random:
            self._random.seed(seed)
            self._env.reset(num_players=self.players, seed=seed)
        self.done = False

    def seen(self, player: int) -> str:
        """Returns the messages to the player since the last call, without its own. Those of others carry a name."""
        messages, self._env.state.observations[player] = self._env.state.observations[player], []
        texts = [
            f"Player {sender}: {text}" if sender >= 0 else text for sender, text, _ in messages if sender != player
        ]
        text = "\n".join(text.strip("\n") for text in texts)
        if listed := _LISTED.findall(text):
            self._moves = _MOVE.findall(listed[-1])
        return text

    def moves(self) -> Sequence[str]:
        """Returns the moves last listed by the game for the player to move."""
        return self._moves

    def step(self, action: str) -> None:
        """Makes a move."""
        with self._random:
            self.done, _ = self._env.step(action)

    @property
    def scores(self) -> Sequence[float]:
        """Rewards; all 0 before the end."""
        rewards = self._env.state.rewards or {}
        return [float(rewards.get(player, 0)) for player in range(self.players)]
