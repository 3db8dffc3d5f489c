"""Recording of agent programs, over an API of OpenAI, Anthropic or Google, with the model of a recipe behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from agentrl.api import event_loop
from agentrl.api.hub_models import at_commits
from agentrl.api.recipes import Overrides, given_recipe
from agentrl.api.run import Run
from agentrl.api.run_dirs import begin_run, closing
from agentrl.config.limits import Limits
from agentrl.config.recipe import Recipe
from agentrl.distributed.servers import LaunchedServers
from agentrl.engines.registry import chosen_engine
from agentrl.proxy.recorder import ProxyContext
from agentrl.proxy.server import Proxy
from agentrl.proxy.web import listening
from agentrl.reporters.reporting import reporting
from agentrl.rewards.components import Component, OpenSandbox, RewardSet
from agentrl.rewards.score import Live
from agentrl.rewards.spans import Decode
from agentrl.rollouts.builder import build
from agentrl.rollouts.engines import open_engine, start_to_sample
from agentrl.rollouts.faults.failures import describe, verdict, within
from agentrl.rollouts.faults.outage import Outage
from agentrl.types.closing import close_all
from agentrl.types.engine import Sampling
from agentrl.types.episode import Episode, Status
from agentrl.types.errors import RecipeError, asked_to_stop
from agentrl.types.parts.intake import Images
from agentrl.types.reporter import Reporter
from agentrl.types.sandbox import Backend, SandboxSpec


def _nothing(failure: dict[str, Any]) -> None:
    """Default of `Scorer.on_failure`."""


@dataclass(frozen=True)
class Scorer:
    """Applies a recipe's rewards to recorded episodes.

    Attributes:
        limits: of the scoring of an episode, and for starting a sandbox; how often scoring is tried.
        read_blob: gives the bytes of an image by its hash.
        decode: gives the text of tokens.
        on_failure: receives every attempt that failed, for `failures.jsonl`.
    """

    rewards: RewardSet
    backend: Backend | None
    spec: SandboxSpec
    limits: Limits
    read_blob: Callable[[str], bytes]
    decode: Decode | None = None
    on_failure: Callable[[dict[str, Any]], None] = _nothing
    _outage: Outage = field(default_factory=Outage)

    async def __call__(self, episode: Episode) -> Episode:
        """Adds the recipe's components to those of the episode's closing call, whose weight is 1.

        After an infrastructure failure only the scoring is retried: the session cannot be repeated. An episode on which
        a reward fails becomes a `user_error`.
        """
        if not self.rewards.components:
            return episode
        for number in range(self.limits.retries + 1):
            try:
                return await self._scored(episode)
            except BaseException as error:
                if asked_to_stop(error):
                    raise
                judged, failed = verdict(error), describe(error, "score")
            status: Status = "infra_error" if judged.status == "infra_error" else "user_error"
            final = not judged.retry or number == self.limits.retries
            said = {"episode": episode.id, "attempt": number, "status": status, "final": final}
            self.on_failure({**said, **msgspec.structs.asdict(failed)})
            if final:
                break
            await asyncio.sleep(self.limits.backoff_s * 2**number)
        return msgspec.structs.replace(episode, status=status, reward=None, components={}, error=failed)

    async def _scored(self, episode: Episode) -> Episode:
        live = Live(info=episode.info, read_blob=self.read_blob, decode=self.decode)
        said = {name: value for name, value in episode.components.items() if value is not None}
        async with within(self.limits.score_s, "scoring an episode", "limits.score_s", None):
            score = await self.rewards.score(episode.task, episode, None, self._fresh(episode.id), live)
        total = None if score.total is None and not said else (score.total or 0.0) + sum(said.values())
        return msgspec.structs.replace(score.onto(episode), components={**said, **score.components}, reward=total)

    def _fresh(self, id: str) -> OpenSandbox | None:
        backend, label, seconds = self.backend, f"{id}/verify", self.limits.sandbox_s
        if backend is None:
            return None
        return lambda **changes: self._outage.create(backend, self.spec.changed(**changes), label, seconds)


def proxy(
    recipe: str | Path | Recipe,
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8300,
    idle_s: float = 600.0,
    names: Sequence[str] = (),
    note: Callable[[str], None],
) -> Run:
    """Serves until SIGINT or SIGTERM, and stores every session as an episode.

    Args:
        out: the run directory; default: `runs/NAME-proxy`.
        idle_s: a session ends after this time without a request.
        names: additional host names of this server that requests may use, besides its address and private names.
        note: receives the address, once the proxy listens there.

    Raises:
        RecipeError: the recipe's engine returns text only, or a reward needs what a recorded session lacks.
    """
    recipe = given_recipe(recipe, overrides)
    if not chosen_engine(recipe).plug_in.trainable:
        raise RecipeError(
            f"engine.use is {recipe.engine.use}, which gives text only: nothing would be token-exact",
            place="engine",
            remedy="a proxy needs torch or vllm",
        )
    path = Path(out) if out is not None else Path("runs") / f"{recipe.name}-proxy"
    recipe, commits = at_commits(recipe, path)
    parts = build(recipe, own_tools=True)
    for component in parts.rewards.components:
        _check(component)
    backend = parts.open_backend()
    run = begin_run(path, recipe, "proxy", models=commits)
    scored = Scorer(
        parts.rewards, backend, recipe.sandbox.spec, recipe.limits, run.get_blob, on_failure=run.add_failure
    )

    async def serve(reporter: Reporter) -> None:
        def keep(episode: Episode) -> None:
            run.add(episode)
            reporter.episode(episode)

        reporter.phase("sessions", 0)
        engine, renderer = open_engine(parts, LaunchedServers)
        try:
            await start_to_sample(engine)
            sampling = Sampling(**recipe.sampling.model_dump())
            score = replace(scored, decode=renderer.tokenizer.decode)
            images = Images(engine, recipe.limits, run.put_blob, run.get_blob)
            context = ProxyContext(engine, renderer, sampling, recipe.seed, images.part)
            recording = Proxy(
                context, keep, model=recipe.name, taken=run.ids(), idle_s=idle_s, score=score, names=names
            )
            async with listening(recording.app(), host, port) as address:
                stop = event_loop.stop_signal()
                note(
                    f"agents talk to {address}/s/SESSION/v1; POST {address}/s/SESSION/end ends an episode; "
                    f"into {run.path}"
                )
                await stop.wait()
        finally:
            await close_all(engine, *([backend] if backend is not None else []))

    with closing(run):
        with reporting(run) as reporter:
            event_loop.run(lambda: serve(reporter))
        run.update_info(finished=True)
    return Run(run.path)


_START = "start the program for each episode: agent.program"
_LACKS = {
    "group": ("scores the members of a group together, and sessions end one by one", "a reward of one episode"),
    "env": ("needs an environment, and a program that somebody else starts has none", _START),
    "tools": ("needs the recipe's tools, and a program that somebody else starts has none of them", _START),
    "sandbox": (
        "looks into the episode's sandbox, and a program that somebody else starts has none",
        f"take fresh_sandbox in its place, or {_START}",
    ),
}
"""Inputs of rewards that a recorded session lacks, with the remedy."""


def _check(component: Component) -> None:
    needed = "group" if component.of_group else component.live_need
    if needed is not None:
        why, remedy = _LACKS[needed]
        raise RecipeError(f"reward {component.name!r} {why}", place=f"rewards.{component.name}", remedy=remedy)
