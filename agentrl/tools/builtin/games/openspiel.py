"""Sequential games of OpenSpiel, with perfect or imperfect information."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.tools.builtin.games.play import Match
from agentrl.types.errors import TaskError, ToolError


class OpenSpiel(Match):
    """Game of OpenSpiel. A player sees its view of the state and its legal moves.

    Args:
        kwargs: parameters of the game.
    """

    def __init__(self, id: str, kwargs: Mapping[str, Any]) -> None:
        import pyspiel

        self._game = pyspiel.load_game(id, dict(kwargs))
        kind = self._game.get_type()
        if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
            raise TaskError(f"openspiel: players of {id} move at the same time", remedy="choose a sequential game")
        hidden = kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION
        self._hidden = hidden and kind.provides_information_state_string
        self.players = self._game.num_players()

    @property
    def env(self) -> Any:
        """State of the game."""
        return self._state

    @property
    def turn(self) -> int:  # type: ignore[override]
        """Player to move."""
        return int(self._state.current_player())

    @property
    def done(self) -> bool:  # type: ignore[override]
        """True if the game has ended."""
        return bool(self._state.is_terminal())

    def reset(self, seed: int) -> None:
        """Begins a game. The seed determines chance events."""
        self._rng = random.Random(f"chance/{seed}")
        self._state = self._game.new_initial_state()
        self._let_chance_move()

    def seen(self, player: int) -> str:
        """Returns the player's view of the state and, on its turn, the legal moves."""
        if (
            self._hidden
            and self._game.get_type().information != type(self._game.get_type().information).PERFECT_INFORMATION
        ):
            text = self._state.information_state_string(player)
        else:
            text = str(self._state)
        mine = not self.done and self.turn == player
        return f"{text}\nMoves: {', '.join(self.moves())}" if mine else text

    def moves(self) -> Sequence[str]:
        """Returns the legal moves."""
        return [*self._legal()]

    def step(self, action: str) -> None:
        """Makes a move."""
        legal = self._legal()
        if (word := action.strip()) not in legal:
            raise ToolError(f"{word[:60]!r} is no move now; there are: {', '.join(legal)}")
        self._state.apply_action(legal[word])
        self._let_chance_move()

    @property
    def scores(self) -> Sequence[float]:
        """Returns so far, by player."""
        return list(self._state.returns())

    def _legal(self) -> dict[str, int]:
        player = self._state.current_player()
        return {self._state.action_to_string(player, each): each for each in self._state.legal_actions()}

    def _let_chance_move(self) -> None:
        while self._state.is_chance_node():
            moves, chances = zip(*self._state.chance_outcomes(), strict=True)
            self._state.apply_action(self._rng.choices(moves, chances)[0])
