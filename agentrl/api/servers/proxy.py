"""Recording of agent programs that speak an API of OpenAI or Anthropic, with the model of a recipe behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentrl.api import event_loop
from agentrl.api.recipes import Overrides, given_recipe
from agentrl.api.run import Run
from agentrl.api.run_dirs import begin_run, closing
from agentrl.config.recipe import Recipe
from agentrl.distributed.servers import LaunchedServers
from agentrl.engines.registry import samples_tokens
from agentrl.proxy.recorder import ProxyContext
from agentrl.proxy.server import Proxy
from agentrl.proxy.web import listening
from agentrl.rollout.builder import build
from agentrl.rollout.engines import open_engine, start_to_sample
from agentrl.types.closing import close_all
from agentrl.types.engine import Sampling
from agentrl.types.errors import RecipeError
from agentrl.types.parts.intake import Images


def proxy(
    recipe: str | Path | Recipe,
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8300,
    idle_s: float = 600.0,
    note: Callable[[str], None],
) -> Run:
    """Serves until SIGINT or SIGTERM, and stores every session as an episode.

    Args:
        out: the run directory; default: `runs/NAME-proxy`.
        idle_s: a session ends after this time without a request.
        note: receives the address, once the proxy listens there.

    Raises:
        RecipeError: the recipe's engine returns text only.
    """
    recipe = given_recipe(recipe, overrides)
    if not samples_tokens(recipe.engine, recipe.base):
        raise RecipeError(
            f"engine.use is {recipe.engine.use}, which gives text only: nothing would be token-exact",
            place="engine",
            remedy="a proxy needs torch or vllm",
        )
    parts = build(recipe, own_tools=True)
    run = begin_run(Path(out) if out is not None else Path("runs") / f"{recipe.name}-proxy", recipe, "proxy")

    async def serve() -> None:
        engine, renderer = open_engine(parts, LaunchedServers)
        try:
            await start_to_sample(engine)
            sampling = Sampling(**recipe.sampling.model_dump())
            images = Images(engine, recipe.limits, run.put_blob, run.get_blob)
            context = ProxyContext(engine, renderer, sampling, recipe.seed, images.part)
            recording = Proxy(context, run.add, model=recipe.name, taken=run.ids(), idle_s=idle_s)
            async with listening(recording.app(), host, port) as address:
                stop = event_loop.stop_signal()
                note(
                    f"agents talk to {address}/s/SESSION/v1; POST {address}/s/SESSION/end ends an episode; "
                    f"into {run.path}"
                )
                await stop.wait()
        finally:
            await close_all(engine)

    with closing(run):
        event_loop.run(serve)
        run.update_info(finished=True)
    return Run(run.path)
