"""Seats of games of several players, and moves of a game that has ended."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentrl.tools.builtin.games.game import Game
from agentrl.tools.builtin.games.play import GameFailed, Match, Seat, any_move
from agentrl.types.errors import ToolError
from agentrl.types.task import Task


class Race(Match):
    """Two players add to a sum; who reaches 4 wins. It lists no moves."""

    def __init__(self) -> None:
        self.players, self.turn, self.done, self.sum = 2, 0, False, 0

    def reset(self, seed: int) -> None:
        """Begins at 0."""
        self.turn, self.done, self.sum = 0, False, 0

    def seen(self, player: int) -> str:
        """Shows the sum."""
        return f"sum {self.sum}"

    def step(self, action: str) -> None:
        """Adds a number."""
        self.sum, self.turn = self.sum + int(action), 1 - self.turn
        self.done = self.sum >= 4

    @property
    def scores(self) -> list[float]:
        """Gives 1 to the player who moved last."""
        return [float(self.done and self.turn != player) for player in (0, 1)]

    @property
    def env(self) -> Any:
        """Is the match itself."""
        return self


def one(seen: str, moves: Any, rng: random.Random) -> str:
    """Adds 1, whatever is listed."""
    return "1"


async def test_a_match_of_the_recipe_is_played_from_one_seat_until_it_ends() -> None:
    game = Game(library=Race, opponent=one, solved_at=1.0)
    await game.open(Task.of("t", "x"), None)
    assert isinstance(game.play, Seat)
    assert game.play.env is game.play.match
    first: Any = await game.act("2")
    assert (first.text, game.info["success"]) == ("sum 3", False)
    last: Any = await game.act("1")
    assert last.done
    assert (game.info["return"], game.info["success"], game.info["ended"]) == (1.0, True, True)
    with pytest.raises(ToolError, match="the game has ended"):
        await game.act("1")


def test_an_opponent_that_draws_needs_moves_to_draw_from() -> None:
    assert Race().moves() == ()
    with pytest.raises(GameFailed, match="lists no moves for the opponent 'random'") as refused:
        any_move("sum 0", (), random.Random(0))
    assert "give an opponent of your own" in (refused.value.remedy or "")
    assert any_move("sum 0", ("1",), random.Random(0)) == "1"
