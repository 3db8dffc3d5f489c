"""Callback engine: a function returns each turn, for example in an environment server."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.engines.scripted import LiveScript, Say, ScriptedEngine
from agentrl.types.task import Message, Task

Ask = Callable[[list[Message], list[dict[str, Any]]], Awaitable[Say]]
"""Gets the messages since the last turn and the definitions of the tools; gives the next turn."""


class AskingEngine(ScriptedEngine):
    """Asks for each turn, and waits for it."""

    name = "asking"

    def __init__(self, ask: Ask, renderer: Renderer) -> None:
        super().__init__(_no_script, renderer, renderer.parser)
        self._ask = ask

    async def _said(self, live: LiveScript) -> Say:
        return await self._ask(live.new(), [*live.tools])


def _no_script(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Yields no turns."""
    yield from ()
