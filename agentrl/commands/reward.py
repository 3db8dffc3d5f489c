"""`agentrl reward`: scores a stored run again, without new rollouts."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from agentrl.commands.runs import EpisodesMissing, recipe_of
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.rewards.components import Component, RewardSet
from agentrl.rewards.steps import Values
from agentrl.rollout.budgets import Budgets
from agentrl.rollout.failures import describe
from agentrl.rollout.outage import Outage
from agentrl.sandbox.registry import open_backend
from agentrl.store.rescored import Rescore, add, begin
from agentrl.store.run_dir import RunDir
from agentrl.types.closing import close_all, to_stderr
from agentrl.types.episode import Episode
from agentrl.types.errors import REMEDY, InfraError, RecipeError, StoreError
from agentrl.types.sandbox import Backend, Sandbox


def rescore(path: Path, recipe_name: str | None, overrides: list[str], *, name: str) -> dict[str, Any]:
    """Scores the episodes of a run by the rewards of a recipe, and keeps that as `name` beside the record.

    A component that needs the sandbox as the agent left it keeps the value that was recorded under its name. Episodes
    whose judge or sandbox failed are left for the same command, given again.

    Args:
        recipe_name: default: the recipe of the run, for `--set` to change.

    Returns:
        By component and for `reward`: means, recorded and new, how many are unscored; what failed; and by status how
        many episodes were left out, being neither done nor truncated.

    Raises:
        RecipeError: a component needs the live sandbox, and no episode has a recorded value.
    """
    with RunDir.read(path) as run:
        before = recipe_of(run) if "recipe" in run.info else None
        if recipe_name is None and (before is None or overrides):
            raise RecipeError("no recipe is named", remedy="agentrl reward RUN --recipe R, with --set for changes")
        recipe = load_recipe(recipe_name, overrides) if recipe_name is not None else before
        assert recipe is not None
        rewards = RewardSet.from_recipe(
            {key: settings.spec for key, settings in recipe.rewards.items()}, recipe.base, recipe.gate
        )
        if not rewards.components:
            raise RecipeError("the recipe has no rewards", place="rewards")
        described = json.loads(recipe.model_dump_json(include={"rewards", "gate"}))
        described["code"] = {component.name: _code(component) for component in rewards.components}
        left_out = Counter(row.status for row in run.rows() if row.status not in ("done", "truncated"))
        if left_out.total() == len(run.rows()):
            counts = ", ".join(f"{count} {status}" for status, count in sorted(left_out.items()))
            raise StoreError(
                f"holds no done or truncated episode ({counts or 'it is empty'})",
                place=str(path),
                remedy="agentrl show RUN --status user_error lists what failed",
            )
        there = begin(path, name, described)
        todo = [row.id for row in run.rows() if row.status in ("done", "truncated") and row.id not in there]
        scorer = _Scorer(rewards, recipe, _scored_by(before))
        failures = asyncio.run(scorer.run(run.episodes(todo), path, name))
        episodes = [episode for episode in run.episodes() if episode.status in ("done", "truncated")]
        scores = begin(path, name, described)
    return {**_comparison(episodes, scores, rewards), "failed": failures, "left_out": dict(left_out)}


def _code(component: Component) -> str:
    """A hash of a user's function: scores of other code must not be taken for its own. "" for built-in ones."""
    if component.function.__module__.startswith("agentrl."):
        return ""
    try:
        source = inspect.getsource(component.function)
    except (TypeError, OSError):  # an object with __call__, or code without a file
        source = repr(type(component.function))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _scored_by(recipe: Recipe | None) -> set[str]:
    """Names of turn rewards that an earlier recipe's functions gave: they are not the tools', and are dropped."""
    if recipe is None:
        return set()
    return {name for name, settings in recipe.rewards.items() if (settings.use or name) != "tool_reward"}


class _Scorer:
    """Scores episodes side by side, at most `recipe.concurrency` at a time."""

    def __init__(self, rewards: RewardSet, recipe: Recipe, earlier: set[str]) -> None:
        self.rewards, self.recipe, self.earlier = rewards, recipe, earlier
        self.backend: Backend | None = None
        self.outage = Outage()

    async def run(self, episodes: Iterable[Episode], path: Path, name: str) -> list[str]:
        """Stores the scores; returns why episodes could not be scored this time.

        Raises:
            SandboxDown, EngineDown: sandboxes, or the judge, failed for too many episodes in a row.
        """
        if self.rewards.needs_fresh_sandbox:
            self.backend = open_backend(self.recipe.sandbox.use, self.recipe.sandbox.settings, self.recipe.base)
            self.backend.preflight(self.recipe.sandbox.spec)
        failures: list[str] = []
        budgets = Budgets(self.recipe.limits)
        waiting = iter(episodes)
        running: set[asyncio.Task[Episode]] = set()
        try:
            while True:
                while len(running) < self.recipe.concurrency and (episode := next(waiting, None)) is not None:
                    running.add(asyncio.create_task(self._score(episode), name=episode.id))
                if not running:
                    return failures
                finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                errors = [error for task in finished if (error := task.exception()) is not None]
                for task in finished:
                    if task.exception() is None:
                        add(path, name, Rescore.of(task.result()))
                        budgets.succeed()
                if unexpected := [error for error in errors if not isinstance(error, InfraError)]:
                    raise unexpected[0]
                for error in errors:
                    failures.append(str(error))
                    budgets.fail(describe(error, "score"), "scoring again")
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await close_all(to_stderr, self.backend)

    async def _score(self, episode: Episode) -> Episode:
        turns = [
            msgspec.structs.replace(
                turn, rewards={name: value for name, value in turn.rewards.items() if name not in self.earlier}
            )
            for turn in episode.turns
        ]
        bare = msgspec.structs.replace(episode, turns=turns, components={}, reward=None, gates=[], notes={})
        found: dict[str, Values] = {}
        notes: dict[str, str] = {}
        async with asyncio.timeout(self.recipe.limits.score_s):
            for component in self.rewards.components:
                if component.sandbox_required:
                    found[component.name] = _recorded(component, episode)
                    notes[component.name] = "as recorded: it needs the sandbox of the episode"
                    continue
                found[component.name], note = await component(episode.task, bare, None, self._fresh)
                if note:
                    notes[component.name] = note
        return self.rewards.combine(bare, found, notes).onto(bare)

    async def _fresh(self) -> Sandbox:
        assert self.backend is not None
        limits, spec = self.recipe.limits, self.recipe.sandbox.spec
        return await self.outage.create(self.backend, spec, "reward", limits.sandbox_s)


def _recorded(component: Component, episode: Episode) -> float | None:
    if component.name not in episode.components:
        raise RecipeError(
            f"component {component.name!r} needs the sandbox as the agent left it, which is gone",
            place=f"episode {episode.id}",
            remedy="leave it out, or write it with `fresh_sandbox` instead of `sandbox`; a value that was recorded "
            "under the same name is kept",
        )
    return episode.components[component.name]


def _comparison(episodes: list[Episode], scores: dict[str, Rescore], rewards: RewardSet) -> dict[str, Any]:
    names = [component.name for component in rewards.components]
    old = [(dict(e.components), [turn.rewards for turn in e.turns], e.reward) for e in episodes]
    new = [(score.components, score.turns, score.reward) for score in scores.values()]
    lines = {name: (_values(old, name), _values(new, name)) for name in names}
    lines["reward"] = ([reward for *_, reward in old], [reward for *_, reward in new])
    return {
        "episodes": len(episodes),
        "scored": len(scores),
        "components": {
            name: {"recorded": _mean(before), "new": _mean(after), "unscored": sum(value is None for value in after)}
            for name, (before, after) in lines.items()
        },
    }


def _values(scores: list[Any], name: str) -> list[float | None]:
    """A component of every episode: its outcome, or the sum over its turns."""
    values: list[float | None] = []
    for components, turns, _ in scores:
        scored = [turn[name] for turn in turns if turn.get(name) is not None]
        values.append(components.get(name) if name in components else sum(scored) if scored else None)
    return values


def _mean(values: list[float | None]) -> float | None:
    scored = [value for value in values if value is not None]
    return sum(scored) / len(scored) if scored else None


def require_all_scored(result: dict[str, Any], path: Path) -> None:
    """For the end of the command, when all else is told.

    Raises:
        EpisodesMissing: some episodes could not be scored.
    """
    if failed := result["failed"]:
        raise EpisodesMissing(
            f"{len(failed)} of {result['episodes']} episodes could not be scored; the last: "
            f"{failed[-1].partition(REMEDY)[0]}",
            place=str(path),
            remedy="the same command tries them again",
        )


def print_comparison(result: dict[str, Any], path: Path, name: str) -> None:
    """The result of `rescore` for people."""
    table = Table("component", "recorded", "new", "unscored", box=None)
    for component, line in result["components"].items():
        means = ["-" if line[key] is None else f"{line[key]:.4f}" for key in ("recorded", "new")]
        table.add_row(component, *means, str(line["unscored"] or "-"))
    console = Console()
    console.print(f"{result['scored']} of {result['episodes']} episodes scored as {name!r} (means; turns summed)")
    console.print(table)
    if result["left_out"]:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(result["left_out"].items()))
        console.print(f"left out: {counts}; only done and truncated episodes are scored")
    console.print(f"agentrl show {path} EPISODE shows them beside the recorded ones", markup=False)
