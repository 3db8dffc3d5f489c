"""A small world for runner tests: tools that misbehave in every way, engines that break off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from agentrl.config.recipe import Recipe
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.builder import Parts, build
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.runner import LocalRunner
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store.run_dir import RunDir
from agentrl.tools.base import Tool, ToolResult, tool
from agentrl.types.engine import Completion, Sampling
from agentrl.types.episode import Episode
from agentrl.types.errors import EngineError, ToolError
from agentrl.types.task import Task

Script = Callable[..., Generator[Say, list[dict[str, Any]], None]]


class Bench(Tool):
    """Every kind of tool behaviour."""

    hanging: ClassVar[int] = 0
    """Calls of `hang` that are under way."""

    async def open(self, task: Task, sandbox: Any) -> None:
        self.closed, self.notes = False, ""

    async def close(self) -> None:
        self.closed = True

    @tool
    async def echo(self, text: str) -> str:
        """Say it again."""
        return text

    @tool
    async def note(self, text: str, wait: float = 0.0) -> str:
        """Notes something after `wait` simulated seconds; all notes so far."""
        await asyncio.sleep(wait)
        self.notes += text
        return self.notes

    @tool
    async def refuse(self) -> str:
        """A failure for the model."""
        raise ToolError("not today")

    @tool
    async def crash(self) -> str:
        """A bug."""
        raise ZeroDivisionError("division by zero")

    @tool
    async def trip(self) -> str:
        """Awaits what it has cancelled itself."""
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task
        return "never"

    @tool
    async def hang(self) -> str:
        """Never returns."""
        Bench.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            Bench.hanging -= 1
        return "late"

    @tool
    async def table(self) -> list[dict[str, Any]]:
        """What is not text."""
        return [{"name": "née", "size": None}]

    @tool
    async def flood(self) -> str:
        """Ten megabytes."""
        return "<" + "x" * 10_000_000 + ">"

    @tool
    async def end(self, answer: str) -> ToolResult:
        """Ends the episode."""
        return ToolResult("", done=True, answer=answer, rewards={"ended": 0.5})


class FlakyEngine(ScriptedEngine):
    """Fails the first `failures` completions."""

    failures = 0

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        if self.failures > 0:
            self.failures -= 1
            raise EngineError("connection reset")
        return await super().generate(token_ids, sampling, session)


def make_parts(tmp_path: Path, **recipe: Any) -> Parts:
    """The parts of a recipe with the bench as its only tool."""
    made = Recipe.model_validate(
        {
            "name": "bench",
            "tasks": {"source": "tests.rollouts.world:tasks"},
            "tools": ["tests.rollouts.world:Bench"],
            "limits": {"backoff_s": 0.0, "user_errors": 1000},
            **recipe,
        }
    )
    made._base = tmp_path
    return build(made)


def tasks(n: int = 4) -> list[Task]:
    return [Task.of(f"t{k}", f"Task {k}.", answer=str(k)) for k in range(n)]


def make_context(
    parts: Parts, script: Script, engine: type[ScriptedEngine] = ScriptedEngine, **more: Any
) -> RolloutContext:
    """A context whose policy is `script`, in bytes."""
    from agentrl.chat.tokenizer import ByteTokenizer

    renderer = parts.renderer(ByteTokenizer())
    return replace(parts.context(engine(script, renderer, renderer.parser), renderer, None), **more)


def specs(n: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(f"g{k // 2}#{k % 2}", f"g{k // 2}", task) for k, task in enumerate(tasks(n))]


async def collect(
    context: RolloutContext,
    specs: Sequence[EpisodeSpec],
    *,
    concurrency: int = 1,
    seen: list[Episode] | None = None,
    failures: list[dict[str, Any]] | None = None,
    run: RunDir | None = None,
) -> list[Episode]:
    """Plays them here, in the order in which they end.

    Args:
        seen: takes them one by one, so that a test can look at them if the run stops early.
        failures: takes what would go into `failures.jsonl`.
        run: that they, and failures, are stored in.
    """
    episodes = [] if seen is None else seen

    def store(*tree: Episode) -> None:
        if run is not None:
            run.add(*tree)
        episodes.extend(tree)

    note = run.add_failure if run is not None else ([] if failures is None else failures).append
    runner = LocalRunner(replace(context, on_failure=note))
    async with RolloutScheduler(runner, concurrency=concurrency, limits=context.limits, store=store) as scheduler:
        await scheduler.play_all(specs)
    return episodes


async def play_one(context: RolloutContext) -> Episode:
    return (await collect(context, specs(1)))[0]


__all__ = ["Bench", "FlakyEngine", "collect", "make_context", "make_parts", "play_one", "specs"]


def calls(*names: str, **arguments: Any) -> Any:
    """A script that calls tools, one a turn, then ends the episode."""

    def script(task: Any, rng: Any) -> Any:
        for name in names:
            yield Say(calls=[(name, arguments if name == "echo" else {})])
        yield Say(calls=[("end", {"answer": task.data["answer"]})])

    return script


async def found(task: Any, episode: Any) -> float:
    """A reward of 1 for any answer."""
    return float(episode.answer is not None)
