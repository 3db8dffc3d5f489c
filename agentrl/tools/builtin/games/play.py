"""What a game is to the `game` tool: one player's view, and the view of a table with several players."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.types.errors import InfraError, ToolServerEnded


@dataclass(frozen=True)
class Step:
    """What a move led to.

    Attributes:
        text: what the player is shown.
        reward: of this move, and of those of other players that followed it.
        success: whether the game is won, if the environment says so.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    success: bool | None = None


class GameFailed(InfraError):
    """An environment raised where it should not, or does not begin."""


class MoveFailed(GameFailed, ToolServerEnded):
    """An environment raised in `step`, or gave what is no reward, perhaps because of the model's move."""


class Play(ABC):
    """A game as one player sees it. The methods may block, and then run in a thread; they do not overlap.

    `step` may be `async def` in a subclass. It then runs in the event loop: it awaits what takes long.
    """

    @abstractmethod
    def reset(self, seed: int) -> str:
        """Begins a game, and returns what the player is shown first."""

    @abstractmethod
    def step(self, action: str) -> Step | Awaitable[Step]:
        """Makes a move.

        Raises:
            ToolError: it is no move; the player is told.
        """

    def close(self) -> None:
        """Frees what the environment holds."""
        return

    @property
    @abstractmethod
    def env(self) -> Any:
        """The environment itself, for state keys."""


class Match(ABC):
    """A game of several players, numbered from 0, who move one after another."""

    players: int
    turn: int
    done: bool

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Begins a game."""

    @abstractmethod
    def seen(self, player: int) -> str:
        """What a player is shown that it was not shown before."""

    @abstractmethod
    def step(self, action: str) -> None:
        """Makes a move for the player whose turn it is.

        Raises:
            ToolError: it is no move.
        """

    def moves(self) -> Sequence[str]:
        """The moves of the player whose turn it is; empty if the environment does not list them."""
        return ()

    @property
    @abstractmethod
    def scores(self) -> Sequence[float]:
        """The reward of each player so far."""

    @property
    @abstractmethod
    def env(self) -> Any:
        """The environment itself."""

    def close(self) -> None:
        """Frees what the environment holds."""
        return


Opponent = Callable[[str, Sequence[str], random.Random], str]
"""Chooses a move: of what the opponent is shown, the moves that are listed, and a seeded generator."""


def any_move(seen: str, moves: Sequence[str], rng: random.Random) -> str:
    """The opponent `random`: any of the moves that are listed."""
    if not moves:
        raise GameFailed(
            "the environment lists no moves for the opponent 'random'",
            remedy="give an opponent of your own: opponent: ./task.py:function(seen, moves, rng)",
        )
    return rng.choice(moves)


def numbered(word: str, first: int, end: int) -> bool:
    """Whether a word is a number from `first` to below `end`. Python refuses to read numbers of thousands of digits."""
    return word.isdecimal() and len(word) <= _DIGITS and first <= int(word) < end


_DIGITS = 100


class Seat(Play):
    """One seat of a match; the others are taken by an opponent.

    Args:
        player: the seat, from 0.
    """

    def __init__(self, match: Match, player: int, opponent: Opponent) -> None:
        self.match, self.player, self.opponent = match, player, opponent

    @property
    def env(self) -> Any:
        """The environment of the match."""
        return self.match.env

    def reset(self, seed: int) -> str:
        """Begins a game; opponents who stand before the player have moved."""
        self._rng = random.Random(f"opponent/{seed}")
        self.match.reset(seed)
        self._scored = 0.0
        self._let_others_move()
        return self.match.seen(self.player)

    def step(self, action: str) -> Step:
        """Makes a move, and lets the others answer it."""
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
