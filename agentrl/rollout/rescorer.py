"""Scores stored episodes again, without new rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from agentrl.config.limits import Limits
from agentrl.rewards.components import Component, OpenSandbox, RewardSet
from agentrl.rewards.steps import Values
from agentrl.rollout.faults.failures import describe
from agentrl.rollout.faults.outage import Outage
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import InfraError, RecipeError
from agentrl.types.sandbox import Backend, SandboxSpec


class Rescorer:
    """A player of stored episodes: what comes out has other rewards, and nothing else changes.

    Args:
        read: the stored episode of an id.
        earlier: turn rewards that reward functions gave before; they are dropped.
        backend: for components that ask for a fresh sandbox of `spec`.
    """

    def __init__(
        self,
        rewards: RewardSet,
        read: Callable[[str], Episode],
        limits: Limits,
        earlier: Collection[str],
        backend: Backend | None,
        spec: SandboxSpec,
    ) -> None:
        self._rewards, self._read, self._limits, self._earlier = rewards, read, limits, earlier
        self._open_sandbox: OpenSandbox | None = None
        if backend is not None:
            self._open_sandbox = partial(Outage().create, backend, spec, "reward", limits.sandbox_s)

    def expect(self, items: Sequence[str]) -> None:
        """They are stored."""

    async def play(self, item: str) -> Episode:
        """The episode with its new scores. An `infra_error`, without any, if a judge or a sandbox failed.

        Raises:
            RecipeError: a component needs the live sandbox, and the episode has no recorded value.
        """
        episode = self._read(item)
        bare = msgspec.structs.replace(
            episode, turns=self._bare_turns(episode), components={}, reward=None, gates=[], notes={}
        )
        try:
            async with asyncio.timeout(self._limits.score_s):
                return await self._scored(episode, bare)
        except InfraError as error:
            return msgspec.structs.replace(bare, status="infra_error", error=describe(error, "score"))

    def _bare_turns(self, episode: Episode) -> list[Turn]:
        return [
            msgspec.structs.replace(
                turn, rewards={name: value for name, value in turn.rewards.items() if name not in self._earlier}
            )
            for turn in episode.turns
        ]

    async def _scored(self, episode: Episode, bare: Episode) -> Episode:
        found: dict[str, Values] = {}
        notes: dict[str, str] = {}
        for component in self._rewards.components:
            if component.sandbox_required:
                found[component.name] = _recorded(component, episode)
                notes[component.name] = "as recorded: it needs the sandbox of the episode"
                continue
            found[component.name], note = await component(episode.task, bare, None, self._open_sandbox)
            if note:
                notes[component.name] = note
        return self._rewards.combine(bare, found, notes).onto(bare)


def _recorded(component: Component, episode: Episode) -> float | None:
    if component.name not in episode.components:
        raise RecipeError(
            f"component {component.name!r} needs the sandbox as the agent left it, which is gone",
            place=f"episode {episode.id}",
            remedy="leave it out, or write it with `fresh_sandbox` instead of `sandbox`; a value that was recorded "
            "under the same name is kept",
        )
    return episode.components[component.name]
