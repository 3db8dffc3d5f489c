"""`agentrl proxy`: records agent programs that talk to the OpenAI API, with a model of ours behind it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from agentrl.api.run_dirs import begin_run
from agentrl.config.loader import load_recipe
from agentrl.distributed.servers import LaunchedServers
from agentrl.engines.registry import samples_tokens
from agentrl.proxy.recorder import ProxyContext
from agentrl.proxy.server import Proxy
from agentrl.rollout.builder import build
from agentrl.rollout.engines import open_engine, start_to_sample
from agentrl.types.closing import close_all
from agentrl.types.engine import Sampling
from agentrl.types.errors import RecipeError


def proxy(
    name: str,
    overrides: list[str],
    *,
    out: Path | None,
    host: str,
    port: int,
    idle_s: float,
    tell: Callable[[str], None],
) -> Path:
    """Serves until it is stopped, and stores every session as an episode. Returns the run directory.

    Raises:
        RecipeError: the recipe's engine gives no exact tokens.
    """
    recipe = load_recipe(name, overrides)
    if not samples_tokens(recipe.engine, recipe.base):
        raise RecipeError(
            f"engine.use is {recipe.engine.use}, which gives text only: nothing would be token-exact",
            place="engine",
            remedy="a proxy needs torch or vllm",
        )
    parts = build(recipe)
    path = out or Path("runs") / f"{recipe.name}-proxy"
    run = begin_run(path, recipe, "proxy")

    async def attend() -> None:
        engine, renderer = open_engine(parts, LaunchedServers)
        try:
            await start_to_sample(engine)
            sampling = Sampling(**recipe.sampling.model_dump())
            context = ProxyContext(engine, renderer.tokenizer, recipe.agent.format, sampling, recipe.seed, recipe.base)
            taken = run.ids()
            runner = web.AppRunner(Proxy(context, run.add, model=recipe.name, taken=taken, idle_s=idle_s).app())
            await runner.setup()
            try:
                await web.TCPSite(runner, host, port).start()
                address = f"http://{host}:{runner.addresses[0][1]}"
                tell(
                    f"agents talk to {address}/s/SESSION/v1; POST {address}/s/SESSION/end ends an episode; into {path}"
                )
                stop = asyncio.Event()
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
                await stop.wait()
            finally:
                await runner.cleanup()
        finally:
            await close_all(engine)

    try:
        asyncio.run(attend())
        run.update_info(finished=True)
    finally:
        run.close()
    return path
