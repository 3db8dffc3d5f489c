"""Tasks of games, one per seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.types.task import Task

HELD_OUT = 1_000_000
"""First seed of the held-out games."""


def seeds(
    n: int = 64,
    instruction: str = "Play the game.",
    held_out: bool = False,
    games: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Task]:
    """Yields `n` tasks, each with its own seed; several kinds alternate.

    Args:
        instruction: instruction before the first observation.
        held_out: uses the seeds reserved for evaluation.
        games: kinds of games by name, with settings `id`, `kwargs` and `player` of the tool `game`, and `instruction`.
    """
    kinds = [*(games or {"game": {}}).items()]
    for number in range(n):
        name, settings = kinds[number % len(kinds)]
        seed = number // len(kinds) + (HELD_OUT if held_out else 0)
        said = str(settings.get("instruction", instruction))
        game = {key: value for key, value in settings.items() if key != "instruction"}
        yield Task.of(f"{name}{seed}", said, seed=seed, game=game)
