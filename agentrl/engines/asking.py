"""Callback engine: a function returns each turn, for example in an environment server."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.engines.scripted import LiveScript, Say, ScriptedEngine
from agentrl.types import values
from agentrl.types.task import Message, Task

Ask = Callable[[list[Message], list[dict[str, Any]]], Awaitable[Say]]
"""Gets the messages since the last turn and the definitions of the tools; gives the next turn."""


class AskingEngine(ScriptedEngine):
    """Asks for each turn, and waits for it.

    Whoever is asked may answer anything, and none of it ends the episode: what the format cannot express is text.
    """

    name = "asking"
    strict = False
    continues = False

    def __init__(self, ask: Ask, renderer: Renderer) -> None:
        super().__init__(_no_script, renderer, renderer.parser)
        self._ask = ask

    def _written(self, live: LiveScript, said: Say) -> str:
        try:
            return values.text(super()._written(live, said))
        except ValueError:
            calls = [{"name": name, "arguments": arguments} for name, arguments in said.calls]
            return values.text("\n".join([said.text, *(json.dumps(call, default=str) for call in calls)]))

    async def _said(self, live: LiveScript) -> Say:
        return await self._ask(live.new(), [*live.tools])


def _no_script(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Yields no turns."""
    yield from ()
