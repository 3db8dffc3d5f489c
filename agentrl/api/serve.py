"""The vLLM servers of a recipe, with the flags that training needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from agentrl.api import event_loop
from agentrl.api.hub_models import at_commits
from agentrl.api.recipes import Overrides, given_recipe
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.recipe import Recipe
from agentrl.engines.vllm.launch import START_S, Servers
from agentrl.rollouts.builder import build
from agentrl.rollouts.engines import opening_of
from agentrl.types.errors import EngineError


def serve(recipe: str | Path | Recipe, overrides: Overrides = (), *, note: Callable[[str], None]) -> None:
    """Runs one server per port of `engine.urls` (without urls: `engine.replicas` servers, from port 8000 on) until
    SIGINT or SIGTERM.

    Args:
        note: receives lines for the user.

    Raises:
        RecipeError: the recipe's engine is not vllm, or its model does not exist yet.
        EngineError: a server exited.
    """
    recipe, _ = at_commits(given_recipe(recipe, overrides), None)
    opening = opening_of(build(recipe), ByteTokenizer())  # servers have their own
    servers: Servers = opening.engine.plug_in.serve(opening)
    note(f"starting {len(servers.urls)} server(s), logs in {servers.folder}")
    event_loop.run(lambda: _keep(servers, note))


async def _keep(servers: Servers, note: Callable[[str], None]) -> None:
    """Waits until a signal stops the servers, or one of them ends."""
    stop = event_loop.stop_signal()
    try:
        ready = asyncio.create_task(servers.ready(START_S))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([ready, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            ready.cancel()
            return
        await ready
        note(f"ready; a recipe attaches with engine: {{use: vllm, urls: [{', '.join(servers.urls)}]}}")
        while not stop.is_set():
            if (dead := servers.dead()) is not None:
                raise EngineError(f"the server ended with status {dead.process.returncode}", place=str(dead.log))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
    finally:
        await servers.close()
