"""Game interfaces of the `game` tool: `Play` for one player's view, `Match` for several players."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.types.errors import InfraError, ToolServerEnded


@dataclass(frozen=True)
class Step:
    """Result of a move.

    Attributes:
        text: observation of the player.
        reward: reward of this move and of the other players' moves after it.
        success: True if the game is won; None if the environment does not report it.
        executed: False if the move did nothing (`ToolResult.executed`).
    """

    text: str
    reward: float = 0.0
    done: bool = False
    success: bool | None = None
    executed: bool = True


class GameFailed(InfraError):
    """An environment raised where it should not, or does not begin."""


class MoveFailed(GameFailed, ToolServerEnded):
    """An environment raised in `step`, or gave what is no reward, perhaps because of the model's move."""


class Play(ABC):
    """One player's view of a game. Methods may block, so they run in a thread; calls do not overlap.

    A subclass may define `step` as `async def`; it then runs in the event loop and must await slow work.
    """

    @abstractmethod
    def reset(self, seed: int) -> str:
        """Begins a game and returns the first observation."""

    @abstractmethod
    def step(self, action: str) -> Step | Awaitable[Step]:
        """Makes a move.

        Raises:
            ToolError: the move is invalid; the message is shown to the player.
        """

    def close(self) -> None:
        """Releases the environment's resources."""
        return

    @property
    @abstractmethod
    def env(self) -> Any:
        """Underlying environment, for state keys."""


class Match(ABC):
    """Game of several players, numbered from 0, with sequential moves."""

    players: int
    turn: int
    done: bool

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Begins a game."""

    @abstractmethod
    def seen(self, player: int) -> str:
        """Returns the player's observation since the last call."""

    @abstractmethod
    def step(self, action: str) -> None:
        """Makes a move for the player to move.

        Raises:
            ToolError: the move is invalid.
        """

    def moves(self) -> Sequence[str]:
        """Returns the moves of the player to move; empty if the environment does not list them."""
        return ()

    @property
    @abstractmethod
    def scores(self) -> Sequence[float]:
        """Reward of each player so far."""

    @property
    @abstractmethod
    def env(self) -> Any:
        """Underlying environment."""

    def close(self) -> None:
        """Releases the environment's resources."""
        return


Opponent = Callable[[str, Sequence[str], random.Random], str]
"""Chooses a move from the opponent's observation, the listed moves and a seeded generator."""


def any_move(seen: str, moves: Sequence[str], rng: random.Random) -> str:
    """Opponent `random`: draws one of the listed moves."""
    if not moves:
        raise GameFailed(
            "the environment lists no moves for the opponent 'random'",
            remedy="give an opponent of your own: opponent: ./task.py:function(seen, moves, rng)",
        )
    return rng.choice(moves)


def numbered(word: str, first: int, end: int) -> bool:
    """Returns True if a word is a number from `first` to below `end`.

    Python refuses to read numbers of thousands of digits.
    """
    return word.isdecimal() and len(word) <= _DIGITS and first <= int(word) < end


_DIGITS = 100


class Seat(Play):
    """One seat of a match; an opponent plays the others.

    Args:
        player: seat number, from 0.
    """

    def __init__(self, match: Match, player: int, opponent: Opponent) -> None:
        self.match, self.player, self.opponent = match, player, opponent

    @property
    def env(self) -> Any:
        """Environment of the match."""
        return self.match.env

    def reset(self, seed: int) -> str:
        """Begins a game; opponents before the player make their moves first."""
        self._rng = random.Random(f"opponent/{seed}")
        self.match.reset(seed)
        self._scored = 0.0
        self._let_others_move()
        return self.match.seen(self.player)

    def step(self, action: str) -> Step:
        """Makes a move and the opponents' answers."""
        self.match.step(action)
        self._let_others_move()
        match = self.match
        score = float(match.scores[self.player])
        reward, self._scored = score - self._scored, score
        best = match.done and (score >= 1 if match.players == 1 else score >= max(match.scores) > min(match.scores))
        return Step(match.seen(self.player), reward, match.done, best if match.done else None)

    def close(self) -> None:
        """Closes the match."""
        self.match.close()

    def _let_others_move(self) -> None:
        while not self.match.done and self.match.turn != self.player:
            self.match.step(self.opponent(self.match.seen(self.match.turn), self.match.moves(), self._rng))
