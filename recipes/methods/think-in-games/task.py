"""States of games in words, each with the move of a player that knows the game."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from agentrl import Say, Task
from agentrl.registry.references import load_object

BABYAI = Path(__file__).parents[2] / "babyai"
missions = load_object("./task.py:missions", BABYAI)
Grid = load_object("./task.py:Grid", BABYAI)
MOVES = ("left", "right", "forward")


def states(n: int = 1024, level: str = "GoToObj", held_out: bool = False) -> Iterator[Task]:
    """The first `n` states of the games of a player, one mission after the other.

    Args:
        held_out: missions that are kept for evaluation.
    """
    games = missions(level, n, held_out)
    yield from itertools.islice((state for game in games for state in _game(game)), n)


def _game(mission: Task) -> Iterator[Task]:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    game = Grid(**mission.data["game"]["kwargs"])
    seen = game.reset(mission.seed)
    asked = seen.splitlines()[0]
    bot, move, over, number = BabyAIBot(game.grid), None, False, 0
    while not over and (move := int(bot.replan(move))) < len(MOVES):
        yield Task.of(f"{mission.id}/{number}", seen, answer=MOVES[move])
        shown, _, won, late, _ = game.grid.step(move)
        seen, over, number = f"{asked}\n{game.view(shown['image'].tolist())}", won or late, number + 1
    game.close()


def player(task: Task, rng: random.Random) -> Iterator[Say]:
    """Gives a reason and the move."""
    yield Say(f"<think>{_reason(task.data['answer'])}</think><answer>{task.data['answer']}</answer>")


def novice(task: Task, rng: random.Random) -> Iterator[Say]:
    """Any move with its reason, and half of the time the player's; now and then without a reason."""
    move = task.data["answer"] if rng.random() < 0.5 else rng.choice(MOVES)
    thought = f"<think>{_reason(move)}</think>" if rng.random() < 0.8 else ""
    yield Say(f"{thought}<answer>{move}</answer>")


def _reason(move: str) -> str:
    return "It is ahead." if move == "forward" else f"It is on the {move}."
