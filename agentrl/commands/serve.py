"""`agentrl serve`: the vLLM servers of a recipe, with the flags that training needs, until they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from urllib.parse import urlsplit

from agentrl.config.loader import load_recipe
from agentrl.engines.vllm.launch import START_S, Servers, start_servers
from agentrl.models.load import model_folder
from agentrl.rollout.engines import named_model, serving
from agentrl.types.errors import EngineError, RecipeError


def serve(name: str, overrides: list[str], tell: Callable[[str], None]) -> None:
    """Starts the servers at the ports of `engine.urls` (one each; without urls `engine.replicas`, from 8000 on).

    Args:
        tell: is given lines for the user.

    Raises:
        RecipeError: the recipe's engine is none that is served, or its model is yet to be built.
        EngineError: a server ended by itself.
    """
    recipe = load_recipe(name, overrides)
    settings = recipe.engine
    if settings.use != "vllm":
        raise RecipeError(
            f"engine.use is {settings.use!r}, which needs no server", place="engine", remedy="--set engine=vllm"
        )
    ports = [urlsplit(url).port or 8000 for url in settings.urls] or [8000 + k for k in range(settings.replicas)]
    model = named_model(recipe)
    settings = settings.model_copy(update={"replicas": len(ports)})
    servers = start_servers(settings, model_folder(model), serving(recipe), ports=ports)
    tell(f"starting {len(ports)} server(s), logs in {servers.folder}")
    asyncio.run(_attend(servers, tell))


async def _attend(servers: Servers, tell: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        ready = asyncio.create_task(servers.ready(START_S))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([ready, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            ready.cancel()
            return
        await ready
        tell(f"ready; a recipe attaches with engine: {{use: vllm, urls: [{', '.join(servers.urls)}]}}")
        while not stop.is_set():
            if (dead := servers.dead()) is not None:
                raise EngineError(f"the server ended with status {dead.process.returncode}", place=str(dead.log))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
    finally:
        await servers.close()
