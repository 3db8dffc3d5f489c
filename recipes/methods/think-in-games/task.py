"""States of games in words, each with the move of a player that knows the game."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from agentrl import Say, Task
from agentrl.registry.references import load_object

BABYAI = Path(__file__).parents[2] / "babyai"
Grid = load_object("./task.py:Grid", BABYAI)
MOVES = ("left", "right", "forward")


def states(n: int = 1024, level: str = "GoToObj", held_out: bool = False) -> Iterator[Task]:
    """The first `n` states of the games of a player, from one mission after the other.

    Args:
        held_out: missions that are kept for evaluation.
    """
    first = 1_000_000 if held_out else 0
    every = (state for seed in itertools.count(first) for state in _game(level, seed))
    yield from itertools.islice(every, n)


def _game(level: str, seed: int) -> Iterator[Task]:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    game = Grid(level)
    seen, mission = game.reset(seed), ""
    mission = seen.splitlines()[0]
    bot, move, over = BabyAIBot(game.grid), None, False
    for number in itertools.count():
        move = int(bot.replan(move))
        if over or move >= len(MOVES):
            break
        said = seen if number == 0 else f"{mission}\n{seen}"
        yield Task.of(f"{level}/{seed}/{number}", said, answer=MOVES[move])
        shown, _, won, late, _ = game.grid.step(move)
        seen, over = f"{game.view(shown['image'].tolist())}", won or late
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
