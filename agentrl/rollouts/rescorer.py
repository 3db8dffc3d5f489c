"""Rescores stored episodes, without new rollouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from agentrl.config.limits import Limits
from agentrl.rewards.bare import bare_turns
from agentrl.rewards.components import Component, OpenSandbox, RewardSet
from agentrl.rewards.score import Live
from agentrl.rewards.spans import Decode
from agentrl.rewards.steps import Values
from agentrl.rollouts.faults.failures import describe, within
from agentrl.rollouts.faults.outage import Outage
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.types.episode import Episode
from agentrl.types.errors import InfraError, RecipeError
from agentrl.types.sandbox import Backend
from agentrl.types.task import Task


class Rescorer:
    """Runner of stored episodes that replaces their rewards and nothing else.

    Args:
        read: reads a stored episode by id.
        earlier: names of turn rewards of earlier reward functions, which are dropped.
        backend: creates the fresh sandboxes of components that need one.
        read_blob: reads an image of the run by its hash.
        decode: gives the text of tokens, by which the tokens of spans are found.
    """

    def __init__(
        self,
        rewards: RewardSet,
        read: Callable[[str], Episode],
        limits: Limits,
        earlier: Collection[str],
        backend: Backend | None,
        specs: TaskSpecs,
        read_blob: Callable[[str], bytes] | None = None,
        decode: Decode | None = None,
    ) -> None:
        self._rewards, self._read, self._limits, self._earlier = rewards, read, limits, earlier
        self._backend, self._specs, self._outage = backend, specs, Outage()
        self._read_blob, self._decode = read_blob, decode

    def expect(self, items: Sequence[str]) -> None:
        """Does nothing: the episodes are stored."""

    async def play(self, item: str) -> Sequence[Episode]:
        """Returns the episode, alone, with new scores.

        It has the status `infra_error` and no scores if a judge or a sandbox failed.

        Raises:
            TookTooLong: functions of the user take longer than `limits.score_s`.
            RecipeError: a component needs the episode's sandbox, and the episode has no recorded value.
        """
        episode = self._read(item)
        bare = msgspec.structs.replace(
            episode, turns=bare_turns(episode, self._earlier), components={}, reward=None, gates=[], notes={}
        )
        try:
            async with within(self._limits.score_s, "scoring an episode", "limits.score_s", None):
                return [await self._scored(episode, bare)]
        except InfraError as error:
            return [msgspec.structs.replace(bare, status="infra_error", error=describe(error, "score"))]

    async def _scored(self, episode: Episode, bare: Episode) -> Episode:
        found: dict[str, Values] = {}
        notes: dict[str, str] = {}
        rewards = self._rewards.of(episode.task)
        for component in rewards.components:
            if component.of_group:
                continue
            if (gone := component.live_need) is not None:
                found[component.name] = _recorded(component, episode, gone)
                notes[component.name] = f"as recorded: it needs the {gone} of the episode"
                continue
            fresh = self._open_sandbox(episode.task)
            live = Live(info=bare.info, read_blob=self._read_blob, decode=self._decode)
            found[component.name], note = await component(episode.task, bare, None, fresh, live)
            if note:
                notes[component.name] = note
        return rewards.withheld(rewards.combine(bare, found, notes)).onto(bare)

    def _open_sandbox(self, task: Task) -> OpenSandbox | None:
        backend, spec, seconds = self._backend, self._specs.of(task), self._limits.sandbox_s
        if backend is None:
            return None
        return lambda **changes: self._outage.create(backend, spec.changed(**changes), "reward", seconds)


_INSTEAD = {"sandbox": "`fresh_sandbox` instead of `sandbox`", "env": "`info`", "tools": "`info` of an environment"}


def _recorded(component: Component, episode: Episode, gone: str) -> float | None:
    if component.name not in episode.components:
        raise RecipeError(
            f"component {component.name!r} needs the {gone} as the agent left it, which is gone",
            place=f"episode {episode.id}",
            remedy=f"leave it out, or write it with {_INSTEAD[gone]}; a value that was recorded under the same name is "
            "kept",
        )
    return episode.components[component.name]
