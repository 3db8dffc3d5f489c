"""The grids of BabyAI, which say of each move whether it did anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object
from agentrl.tools.builtin.games.play import Step

_Grid: Any = load_object("../../babyai/task.py:Grid", Path(__file__).parent)


class Grid(_Grid):  # type: ignore[misc]
    """One mission. A move that leaves everything as it was (a step against a wall) was not carried out."""

    async def step(self, action: str) -> Step:
        """Makes a move."""
        before = self.key()
        made: Step = await super().step(action)
        return replace(made, executed=made.done or self.key() != before)
