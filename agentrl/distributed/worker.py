"""Rollout worker: runs episodes for the driver, with its own tools, sandboxes and rewards."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import Tokenizer
from agentrl.config.recipe import recipe_from_run
from agentrl.distributed.gateway import GatewayEngine
from agentrl.rewards.grading import share_places
from agentrl.rollouts.auxiliary.open import open_policies
from agentrl.rollouts.builder import Parts, build
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.conversation.policies import EpisodePolicies
from agentrl.rollouts.engines import attach
from agentrl.rollouts.faults.stalls import Stall, watched
from agentrl.rollouts.garbage import rare_collections
from agentrl.rollouts.runner import LocalRunner
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.sandbox.pool import Pool
from agentrl.types.engine import Engine
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.sandbox import Backend


@dataclass(frozen=True)
class Scripted:
    """A script of the recipe. It runs in the worker."""

    script: str


@dataclass(frozen=True)
class Attached:
    """Servers of the recipe's engine. Every worker connects to them directly."""

    urls: tuple[str, ...]


@dataclass(frozen=True)
class Served:
    """The driver's engine, behind a gateway."""

    url: str
    token: str
    name: str
    trainable: bool
    max_context: int


Source = Scripted | Attached | Served


@dataclass(frozen=True)
class Setting:
    """Sampling settings shared by the episodes of one rollout context.

    Attributes:
        source: the engine that samples.
        temperature: sampling temperature; overrides the recipe's.
    """

    source: Source
    temperature: float


class Played(msgspec.Struct, frozen=True):
    """A finished episode, with its blobs and failures, which the driver stores.

    Attributes:
        tree: its forks, and at the end the episode.
        blobs: long outputs.
        failures: records of its failed attempts, for `failures.jsonl`.
        stalls: of the worker's event loop, since it returned an episode before.
    """

    tree: list[Episode]
    blobs: list[bytes]
    failures: list[dict[str, Any]]
    stalls: list[Stall]


class RolloutWorker:
    """Runs episodes of one recipe.

    Args:
        recipe: the resolved recipe.
        base: folder of the recipe, which must exist on this machine.
        beside: the number of workers of this machine.

    Raises:
        RecipeError: the folder is not on this machine, or a part of the recipe cannot be built here.
    """

    def __init__(self, recipe: dict[str, Any], base: str, beside: int = 1) -> None:
        share_places(beside)
        if not Path(base).is_dir():
            raise RecipeError(
                f"the recipe's folder {base} is not on {socket.gethostname()}",
                place="scale",
                remedy="copy it there under the same path, or share it (NFS, an image that contains it)",
            )
        self._parts: Parts = build(recipe_from_run({"recipe": recipe, "base": base}))
        self._backend: Backend | None = None
        self._contexts: dict[Setting, RolloutContext] = {}
        self._engines: dict[Source, tuple[Engine, Renderer]] = {}
        self._speakers: EpisodePolicies | None = None
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._calm = ExitStack()
        self._calm.enter_context(rare_collections())
        self._stalls: list[Stall] = []
        self._calm.enter_context(watched(self._stalls.append))

    async def beat(self) -> None:
        """Returns when the event loop turns."""

    async def prepare(self, setting: Setting, tokenizer: Tokenizer) -> None:
        """Opens the engine and the sandbox backend for the episodes of a setting.

        Raises:
            SandboxError: this machine cannot run the recipe's sandboxes.
            EngineError: the engine's servers are unreachable from here, or serve another model.
        """
        if setting in self._contexts:
            return
        async with self._opening:  # settings are prepared side by side
            if self._backend is None:
                self._backend = await asyncio.to_thread(self._parts.open_backend)
        if setting.source not in self._engines:
            self._engines[setting.source] = await self._sampler(setting.source, tokenizer)
        engine, renderer = self._engines[setting.source]
        async with self._opening:
            self._speakers = self._speakers or await self._open.enter_async_context(open_policies(self._parts))
        context = self._parts.context(engine, renderer, self._backend, self._speakers, temperature=setting.temperature)
        self._contexts[setting] = context

    async def play(self, setting: Setting, spec: EpisodeSpec) -> Played:
        """Runs one episode, with fresh attempts after infrastructure failures."""
        context, failures, blobs = self._contexts[setting], list[dict[str, Any]](), dict[str, bytes]()

        def put_blob(data: bytes) -> str:
            sha = hashlib.sha256(data).hexdigest()
            blobs[sha] = data
            return sha

        if isinstance(self._backend, Pool) and (wanted := context.sandbox_of(spec.task)) is not None:
            # The worker does not know the next episodes (probably its group): it keeps the pool full.
            self._backend.prefetch([wanted] * self._backend.ahead)
        own = replace(context, put_blob=put_blob, get_blob=blobs.__getitem__, on_failure=failures.append)
        tree = await LocalRunner(own).play(spec)
        stalls = [self._stalls.pop(0) for _ in range(len(self._stalls))]  # its thread may append meanwhile
        return Played(list(tree), list(blobs.values()), failures, stalls)

    async def close(self) -> None:
        """Closes engines and sandboxes."""
        for engine, _ in self._engines.values():
            await engine.close()
        await self._open.aclose()
        if self._backend is not None:
            await self._backend.close()
        self._calm.close()

    async def _sampler(self, source: Source, tokenizer: Tokenizer) -> tuple[Engine, Renderer]:
        if isinstance(source, Scripted):
            return self._parts.scripted_engine(source.script, tokenizer)
        engine: Engine
        if isinstance(source, Attached):
            engine, renderer = attach(self._parts, source.urls, tokenizer)
        else:
            renderer = self._parts.renderer(tokenizer)
            engine = GatewayEngine(
                source.url,
                source.token,
                name=source.name,
                trainable=source.trainable,
                max_context=source.max_context,
                timeout_s=self._parts.recipe.limits.generate_s,
            )
        await engine.start()
        return engine, renderer
