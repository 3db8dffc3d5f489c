"""Runners: run an episode for each spec, in this process or on workers (`agentrl.distributed`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import msgspec

from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.conversation.policies import EpisodePolicies
from agentrl.rollouts.forking import ForkingAttempt
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.sandbox.pool import Pool
from agentrl.types.engine import Engine
from agentrl.types.episode import Episode, ErrorRecord, in_order
from agentrl.types.sandbox import Backend

Item = TypeVar("Item", contravariant=True)


class EpisodeRunner(Protocol[Item]):
    """Runs an episode for each item. Failures are recorded in the episode; an exception ends the run."""

    def expect(self, items: Sequence[Item]) -> None:
        """Announces the next items, before any of them begins.

        Raises:
            AgentRLError: an item cannot be run.
        """
        ...

    async def play(self, item: Item) -> Sequence[Episode]:
        """Runs one episode; returns the forks that its agent made of it, and at the end the episode itself."""
        ...


class EpisodeRunners(Protocol):
    """Makes runners of episodes.

    Attributes:
        backend: sandbox backend of this process; None if no episode needs one here.
        speakers: auxiliary policies of this process; None if no episode runs here.
    """

    backend: Backend | None
    speakers: EpisodePolicies | None

    def for_context(self, context: RolloutContext) -> EpisodeRunner[EpisodeSpec]:
        """Makes a runner for episodes that share `context`."""
        ...


class LocalRunner:
    """Runs episodes in this process, with fresh attempts after infrastructure failures."""

    def __init__(self, context: RolloutContext) -> None:
        self.context = context

    def expect(self, items: Sequence[EpisodeSpec]) -> None:
        """Checks the specs (see `check_expected`), and announces their sandboxes to the pool."""
        check_expected(self.context, items)
        if isinstance(self.context.backend, Pool):
            specs = [self.context.sandbox_of(item.task) for item in items]
            self.context.backend.prefetch([spec for spec in specs if spec is not None])

    async def play(self, item: EpisodeSpec) -> Sequence[Episode]:
        """Runs one episode, with retries after infrastructure failures. A failed attempt has no forks."""
        limits, suspected = self.context.limits, False
        for number in range(limits.retries + 1):
            attempt = ForkingAttempt(self.context, item, number)
            attempt.suspected = suspected
            episode, judged = await attempt.play()
            suspected = suspected or judged.suspect
            for closing in attempt.close_errors:
                self._report(item, number, closing, status="close_failed", final=False)
            if episode.error is None:
                break
            final = not judged.retry or number == limits.retries
            self._report(item, number, episode.error, status=judged.status, final=final)
            if final:
                break
            await asyncio.sleep(limits.backoff_s * 2**number)
        self.context.on_stage(item.id, None)
        return [*(in_order(attempt.ended) if episode.error is None else ()), episode]

    def _report(self, spec: EpisodeSpec, attempt: int, error: ErrorRecord, *, status: str, final: bool) -> None:
        self.context.on_failure(
            {"episode": spec.id, "attempt": attempt, "status": status, "final": final, **msgspec.structs.asdict(error)}
        )


class RememberingRunner:
    """Gives each episode the text memory that the engine's policy has when the episode begins."""

    def __init__(self, runner: EpisodeRunner[EpisodeSpec], engine: Engine) -> None:
        self._runner, self._engine = runner, engine

    def expect(self, items: Sequence[EpisodeSpec]) -> None:
        """Announces the specs."""
        self._runner.expect(items)

    async def play(self, item: EpisodeSpec) -> Sequence[Episode]:
        """Runs one episode."""
        return await self._runner.play(replace(item, memory=self._engine.memory))


class LocalRunners:
    """Runners in this process, with one sandbox backend and one set of auxiliary policies. The caller closes both."""

    def __init__(self, backend: Backend | None, speakers: EpisodePolicies | None = None) -> None:
        self.backend, self.speakers = backend, speakers

    def for_context(self, context: RolloutContext) -> LocalRunner:
        """Makes a runner for episodes that share `context`."""
        return LocalRunner(context)


def check_expected(context: RolloutContext, specs: Sequence[EpisodeSpec]) -> None:
    """Checks before the first episode that the tasks of `specs` are valid in this context.

    Raises:
        CreditError: a task has no gold answer, and the recipe scores gold answers.
        RecipeError: past versions of the policy are opponents, but no training runs.
        TaskError: a task names a tool, a reward component or a key of the sandbox that does not exist.
        StoreError: the replayed run lacks an episode.
    """
    context.engine.require(spec.id for spec in specs)
    if any(spec.split != "demo" for spec in specs):
        context.speakers.require()
    for spec in specs:
        if spec.task.tools is not None:
            context.tools.part(spec.task)
        if spec.task.sandbox is not None:
            context.specs.of(spec.task)
        context.rewards.of(spec.task)
    if context.answer_scorer is not None:
        for spec in specs:
            context.answer_scorer.golds(spec.task)
