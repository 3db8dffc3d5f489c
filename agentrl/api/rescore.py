"""Scoring a stored run again, without new rollouts."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.api import event_loop
from agentrl.api.recipes import AnyRecipe, Overrides, given_recipe
from agentrl.api.run import Run, folder_of
from agentrl.api.run_dirs import EpisodesMissing
from agentrl.api.run_stages import RunStages
from agentrl.api.run_tokenizer import tokenizer_of
from agentrl.config.recipe import Recipe
from agentrl.reporters.relay import Several
from agentrl.rewards.bare import scoring_functions
from agentrl.rewards.components import Component, RewardSet
from agentrl.rollouts.groups.rescored import RescoredGroups
from agentrl.rollouts.groups.scorer import GroupScorer
from agentrl.rollouts.rescorer import Rescorer
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.sandbox.registry import BACKENDS
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.store.rescored import Rescore, add, begin
from agentrl.store.run_dir import RunDir
from agentrl.types.closing import close_all
from agentrl.types.episode import Episode
from agentrl.types.errors import REMEDY, RecipeError, StoreError
from agentrl.types.figures.sums import total
from agentrl.types.reporter import Reporter


def rescore(
    run: str | Path | Run,
    recipe: AnyRecipe | None = None,
    *,
    name: str = "again",
    stage: str | None = None,
    overrides: Overrides = (),
    reporters: Sequence[Reporter] = (),
) -> dict[str, Any]:
    """Scores the episodes of a run by the rewards of a recipe, and stores the scores as `name` next to the record.

    A component that needs the agent's sandbox keeps its recorded value. Episodes whose judge or sandbox failed are
    retried when the same command runs again.

    Args:
        recipe: as `rollout` takes it; default: that of the stage.
        stage: only its episodes; default: all stages if `recipe` is given, else the only stage.
        overrides: as for `rollout`.
        reporters: are told how many episodes are scored.

    Returns:
        By component and for `reward`: recorded and new means, and the number of unscored episodes; failures; and by
        status the number of episodes left out, as neither done nor truncated.

    Raises:
        RecipeError: a component needs the live sandbox, and no episode has a recorded value.
    """
    path = folder_of(run)
    with RunDir.read(path) as stored:
        stages = RunStages(stored)
        own, prefix = stages.chosen(stage) if recipe is None or stage is not None else (None, "")
        asked = own if recipe is None else recipe
        if asked is None:
            raise RecipeError("names no recipe", place=str(path), remedy="agentrl rescore RUN --recipe R")
        resolved = given_recipe(asked, overrides)
        rewards = _rewards(resolved)
        described = json.loads(resolved.model_dump_json(include={"rewards", "gate", "reward_of", "success"}))
        described["code"] = {component.name: _code(component) for component in rewards.components}
        rows = [row for row in stored.rows() if row.id.startswith(prefix)]
        left_out = _left_out(rows, path)
        there = begin(path, name, described)
        todo = _todo(rows, there, rewards)
        earlier = {name for each in stages.recipes() for name in scoring_functions(each.rewards)}

        reporter = Several(reporters)
        reporter.phase("rescoring", len(todo))
        done = itertools.count(1)

        def store(episode: Episode) -> None:
            reporter.step(next(done), {})
            if episode.id not in there:  # a member of a group of which a kill left some
                add(path, name, Rescore.of(episode))

        failures = event_loop.run(lambda: _score(stored, todo, rewards, resolved, earlier, store))
        episodes = [e for e in stored.episodes() if e.status in ("done", "truncated") and e.id.startswith(prefix)]
        scores = begin(path, name, described)
    return {**_comparison(episodes, scores, rewards), "failed": failures, "left_out": left_out}


def _rewards(recipe: Recipe) -> RewardSet:
    specs = {key: settings.spec for key, settings in recipe.rewards.items()}
    rewards = RewardSet.from_recipe(specs, recipe.base, recipe.gate, recipe.reward_of, recipe.success)
    if not rewards.components:
        raise RecipeError("the recipe has no rewards", place="rewards")
    return rewards


def _left_out(rows: Sequence[EpisodeRow], path: Path) -> dict[str, int]:
    """Counts the episodes that are not scored, by status.

    Raises:
        StoreError: none is scored.
    """
    counts = Counter(row.status for row in rows if row.status not in ("done", "truncated"))
    if counts.total() == len(rows):
        told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        raise StoreError(
            f"holds no done or truncated episode ({told or 'it is empty'})",
            place=str(path),
            remedy="agentrl show RUN --status user_error lists what failed",
        )
    return dict(counts)


def _todo(rows: Sequence[EpisodeRow], there: Collection[str], rewards: RewardSet) -> list[str]:
    """Returns the ids of unscored episodes; with group rewards all episodes of a group that has one."""
    data = [row for row in rows if row.status in ("done", "truncated")]
    lacking = [row for row in data if row.id not in there]
    if not rewards.of_group:
        return [row.id for row in lacking]
    groups = {row.group_id for row in lacking}
    return [row.id for row in sorted(data, key=lambda row: row.group_id) if row.group_id in groups]


def _code(component: Component) -> str:
    """A hash of a user's function: scores of other code must not be taken for its own. "" for built-in ones."""
    if component.function.__module__.startswith("agentrl."):
        return ""
    try:
        source = inspect.getsource(component.function)
    except (TypeError, OSError):  # an object with __call__, or code without a file
        source = repr(type(component.function))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


async def _score(
    run: RunReader,
    ids: list[str],
    rewards: RewardSet,
    recipe: Recipe,
    earlier: set[str],
    store: Callable[[Episode], None],
) -> list[str]:
    """Scores episodes, and stores the scores; returns why episodes could not be scored this time.

    Raises:
        SandboxDown, EngineDown: sandboxes, or the judge, failed for too many episodes in a row.
    """
    backend, specs, groups = None, TaskSpecs(recipe.sandbox.spec), RescoredGroups(store)
    group_of = {row.id: row.group_id for row in run.rows()}
    tokenizer = cache(lambda: tokenizer_of(run))

    def decode(ids: Sequence[int]) -> str:
        return tokenizer().decode(ids)

    scorer = GroupScorer(
        rewards, groups, recipe.limits, group_of.__getitem__, on_failure=groups.failed, read_blob=run.get_blob,
        decode=decode,
    )  # fmt: skip
    try:
        if rewards.needs_fresh_sandbox:
            backend = BACKENDS.chosen(recipe.sandbox, recipe.base).make()
            backend.preflight(specs.spec)
        runner = Rescorer(rewards, run.get, recipe.limits, earlier, backend, specs, run.get_blob, decode)
        async with RolloutScheduler(
            runner, concurrency=recipe.concurrency, limits=recipe.limits, store=groups.keep,
            groups=scorer if rewards.of_group else None,
        ) as scheduler:  # fmt: skip
            await scheduler.play_all(ids)
        return groups.failures
    finally:
        await close_all(backend)


def _comparison(episodes: list[Episode], scores: dict[str, Rescore], rewards: RewardSet) -> dict[str, Any]:
    names = [component.name for component in rewards.components]
    old = [Rescore.of(episode) for episode in episodes]
    new = [scores[episode.id] for episode in episodes if episode.id in scores]
    own = {episode.id: [turn.index for turn in episode.own_turns] for episode in episodes}
    lines = {name: (_values(old, own, name), _values(new, own, name)) for name in names}
    lines["reward"] = ([score.total for score in old], [score.total for score in new])
    return {
        "episodes": len(episodes),
        "scored": len(new),
        "components": {
            name: {"recorded": _mean(before), "new": _mean(after), "unscored": sum(value is None for value in after)}
            for name, (before, after) in lines.items()
        },
    }


def _values(scores: Iterable[Rescore], own: Mapping[str, list[int]], name: str) -> list[float | None]:
    """A component of every episode that it scores: its outcome, or the sum over the policy's turns.

    Args:
        own: these turns, by episode.
    """
    values: list[float | None] = []
    for score in scores:
        turns = [score.turns[turn] for turn in own[score.episode_id]]
        if name in score.components:
            values.append(score.components[name])
        elif any(name in turn for turn in turns):
            scored = [value for turn in turns if (value := turn.get(name)) is not None]
            values.append(total(scored) if scored else None)
    return values


def _mean(values: list[float | None]) -> float | None:
    scored = [value for value in values if value is not None]
    return sum(scored) / len(scored) if scored else None


def require_all_scored(result: dict[str, Any], path: Path) -> None:
    """Checks for failed episodes, after all other output of the command.

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
