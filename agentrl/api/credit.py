"""Crediting a stored run again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentrl.api.recipes import Overrides, as_lines
from agentrl.api.run import Run, folder_of
from agentrl.api.run_stages import RunStages
from agentrl.config.credit import CreditSettings
from agentrl.config.loader import settings_of
from agentrl.config.recipe import Recipe
from agentrl.curriculum.curriculum import load_parts
from agentrl.curriculum.parts import Filter
from agentrl.estimators.registry import ESTIMATORS, CreditAssigner, EpisodeCredit, load_credit
from agentrl.estimators.state_values import StateValues
from agentrl.reporters.relay import Several
from agentrl.store.reader import RunReader
from agentrl.store.rescored import load, rescored
from agentrl.store.run_dir import RunDir
from agentrl.training.batch.truncation import Truncation
from agentrl.training.batch.views import own_views, together
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError, nearest
from agentrl.types.reporter import Reporter


@dataclass(frozen=True)
class CreditedRun:
    """Credit of a stored run, computed by an estimator.

    Attributes:
        episodes: the credited episodes, by id.
        iterations: the iteration of the batch of each, by id.
        batches: metrics of each batch that was credited together: one update, or one iteration of one split of one
            stage.
    """

    credit: CreditAssigner
    episodes: dict[str, Episode]
    credits: list[EpisodeCredit]
    batches: list[dict[str, Any]]
    iterations: dict[str, int] = field(default_factory=dict)

    def only(self, name: str) -> CreditedRun:
        """The same for the episodes that have `name` in their id.

        Raises:
            StoreError: no credited episode has.
        """
        chosen = [credit for credit in self.credits if name in credit.episode_id]
        if not chosen:
            raise StoreError(f"no credited episode has {name!r} in its id")
        return replace(self, credits=chosen)

    def of_iteration(self, iteration: int) -> CreditedRun:
        """The same for the episodes that were credited in an iteration, from 0: in training that of their update.

        Raises:
            StoreError: no episode was.
        """
        ids = self.iterations
        chosen = [credit for credit in self.credits if ids[credit.episode_id] == iteration]
        if not chosen:
            known = sorted({*ids.values()})
            raise StoreError(
                f"no episode was credited in iteration {iteration}",
                place="--iteration",
                remedy=f"there are {known[0]} to {known[-1]}",
            )
        return replace(self, credits=chosen, batches=[each for each in self.batches if each["iteration"] == iteration])

    def as_dict(self) -> dict[str, Any]:
        """Converts to JSON types."""
        return {
            "estimator": self.credit.estimator.name,
            "settings": self.credit.settings.model_dump(mode="json"),
            "batches": self.batches,
            "episodes": [msgspec.to_builtins(credit) for credit in self.credits],
        }


def credit(
    run: str | Path | Run,
    estimator: str | None = None,
    *,
    overrides: Overrides = (),
    stage: str | None = None,
    rewards: str | None = None,
    save: bool = False,
    reporters: Sequence[Reporter] = (),
) -> CreditedRun:
    """Computes the credit of a run's episodes as training does: one batch per update, without episodes that the recipe
    drops (`train.truncated`, `train.timed_out`), each trained policy with its own outcome and baselines.

    Episodes that no update trained on (rollouts, evaluations) are batched by split and iteration.

    Args:
        estimator: a name, or code relative to the folder of the run's recipe, as in the recipe; default: the stage's
            estimator, with `overrides` on its settings.
        stage: only its episodes; default: all stages if `estimator` is given, else the only stage.
        overrides: settings of the estimator: `{"gamma": 0.9}`, or `["gamma=0.9"]`.
        rewards: use the scores that `rescore` stored under this name instead of the recorded ones.
        save: store the credit. It replaces earlier credit in all views of the run.
        reporters: are told how many episodes are read.

    Raises:
        CreditError: unknown estimator or setting, or the episodes lack a required field.
        StoreError: the run or stage does not exist, or no episode in it counts; or `save` would replace the credit of
            the training, which needs more than the stored episodes hold.
    """
    path = folder_of(run)
    with RunDir.read(path) as stored:
        stages = RunStages(stored)
        credit, prefix = _chosen(stored, stages, stage, estimator, settings_of(as_lines(overrides)))
        trained = _trained_in(stored)
        episodes = [e for e in _told(stored, reporters) if e.split != "demo" and e.id.startswith(prefix)]
        if rewards is not None:
            episodes = list(rescored(episodes, load(path, rewards)))
        batches = _batches(episodes, stages, trained)
        if not batches:
            raise StoreError(
                "holds no scored episode that counts", place=str(path), remedy="agentrl show RUN lists what it holds"
            )
        if save and estimator is None and any(batch.trained for batch in batches):
            for of in {batch.prefix for batch in batches}:
                _same_as_trained(stages.recipe_of(of), path)
            if credit.memory() is not None and (group := _trained_again(stored)) is not None:
                raise _other_credit(
                    path, f"group {group!r} trained several times, and credit.decay remembers each time"
                )
        found, memories = [], _Memories(credit)
        for batch in batches:  # of a stage in the order of its updates: credit may remember earlier ones
            batch.credits, metrics = _of_all_policies(credit, batch, stages.recipe_of(batch.prefix), memories)
            found.append({**batch.named, **metrics})
    if save:
        _store(path, batches, "agentrl credit --save" + (f", rewards {rewards!r}" if rewards is not None else ""))
    counted = {episode.id: episode for batch in batches for episode in batch.members}
    iterations = {episode.id: batch.iteration for batch in batches for episode in batch.members}
    return CreditedRun(credit, counted, [one for batch in batches for one in batch.credits], found, iterations)


def _told(run: RunReader, reporters: Sequence[Reporter]) -> Iterator[Episode]:
    """Yields the episodes of a run, and tells reporters how many have been read."""
    reporter = Several(reporters)
    reporter.phase("reading episodes", len(run.ids()))
    for number, episode in enumerate(run.episodes(), 1):
        yield episode
        reporter.step(number, {})


def credit_of_group(run: RunReader, group: str, estimator: str) -> dict[str, Any]:
    """Computes the credit of a group's episodes under a built-in estimator, in the batch that they were credited in.
    Code that the run names is not imported, and nothing is written.

    Batches of more than `_MOST` episodes are cut to whole groups, this one among them: the response says so.

    Raises:
        CreditError: the episodes lack what the estimator needs.
        StoreError: the estimator is not a built-in one, or no episode of the group counts.
    """
    if estimator not in ESTIMATORS.built_in:
        raise StoreError(f"{estimator!r} is no built-in estimator", remedy=nearest(estimator, ESTIMATORS.built_in))
    stages, trained = RunStages(run), _trained_in(run)
    ids, whole = _batch_of(run, group, trained)
    batches = _batches((each for each in run.episodes(ids) if each.split != "demo"), stages, trained)
    batch = next((batch for batch in batches if any(each.group_id == group for each in batch.members)), None)
    if batch is None:
        raise StoreError(f"no episode of group {group!r} is scored and counts", place=str(run.path))
    assigner = load_credit(CreditSettings(use=estimator), run.path)
    credits, _ = _of_all_policies(assigner, batch, stages.recipe_of(batch.prefix), _Memories(assigner))
    members = {each.id for each in batch.members if each.group_id == group}
    return {
        "estimator": estimator,
        "settings": assigner.settings.model_dump(mode="json"),
        "batch": {**batch.named, "episodes": len(batch.members), "whole": whole},
        "credits": {
            one.episode_id: {"turn_advantages": one.turn_advantages, "parts": one.parts}
            for one in credits
            if one.episode_id in members
        },
    }


_MOST = 512
"""Episodes of a batch that `credit_of_group` reads."""


def _batch_of(run: RunReader, group: str, trained: Mapping[str, _Update]) -> tuple[list[str], bool]:
    """Returns the ids of the episodes that a group was credited with, and whether these are all of them."""
    listed = run.select("id, group_id, iteration, split FROM all_episodes ORDER BY group_id, id")
    place = {
        name: (split, trained[name].iteration if name in trained else iteration, name in trained)
        for _, name, iteration, split in listed
    }
    groups: dict[str, list[str]] = {}
    for id, name, _, _ in listed:
        if place[name] == place.get(group):
            groups.setdefault(name, []).append(id)
    chosen = groups.pop(group, [])
    for ids in groups.values():
        if len(chosen) + len(ids) > _MOST:
            return chosen, False
        chosen = [*chosen, *ids]
    return chosen, True


@dataclass
class _Batch:
    """Batch of episodes for one call of the estimator.

    Attributes:
        prefix: prefix of the ids of their stage.
        trained: True if an update trained on them.
        progress: finished share of the training, as it was then; None: it is not known.
    """

    split: str
    prefix: str
    iteration: int
    trained: bool
    members: list[Episode]
    credits: list[EpisodeCredit] = field(default_factory=list)
    progress: float | None = None

    @property
    def named(self) -> dict[str, Any]:
        """Keys that identify the batch in metrics."""
        stage = {"stage": self.prefix.removesuffix("/")} if self.prefix else {}
        return {"split": self.split, **stage, "iteration": self.iteration}


def _store(path: Path, batches: Iterable[_Batch], note: str) -> None:
    with RunDir.open(path) as run:
        for batch in batches:
            for one in batch.credits:
                run.add_credit(
                    one.episode_id, one.estimator, one.turn_advantages, one.parts, iteration=batch.iteration, note=note
                )


class _Update(NamedTuple):
    """The update that a group trained in.

    Attributes:
        iteration: from 0.
        progress: finished share of the training, as it was then; None: the run is of an older version.
    """

    iteration: int
    progress: float | None


def _trained_in(run: RunReader) -> dict[str, _Update]:
    """Returns the update of each group that trained; filters of the curriculum leave groups out."""
    lines = [line for line in run.metrics() if line.get("split") == "train"]
    return {
        group: _Update(line["iteration"] - 1, line.get("progress_of_training"))
        for line in lines
        for group in line.get("trained_groups", ())
        if group not in line.get("left_out_groups", ())
    }


def _trained_again(run: RunReader) -> str | None:
    """A group that trained in several iterations (recorded groups in several passes), or None."""
    found: dict[str, int] = {}
    for line in run.metrics():
        for group in line.get("trained_groups", ()) if line.get("split") == "train" else ():
            if found.setdefault(group, line["iteration"]) != line["iteration"]:
                return str(group)
    return None


def _batches(episodes: Iterable[Episode], stages: RunStages, trained: Mapping[str, _Update]) -> list[_Batch]:
    """Groups the episodes that count into batches."""
    found: dict[tuple[bool, str, str, int, bool], list[Episode]] = defaultdict(list)
    progress: dict[tuple[bool, str, str, int, bool], float | None] = {}
    for episode in episodes:
        split, prefix = episode.split, stages.prefix_of(episode.id)
        train = None if (recipe := stages.recipe_of(prefix)) is None else recipe.train
        drops = split != "eval" and train is not None and not Truncation.of_settings(train).counts(episode)
        if episode.scored and not drops:
            update = trained.get(episode.group_id) if split == "train" else None
            iteration = episode.iteration if update is None else update.iteration
            by = split == "eval", split, prefix, iteration, update is not None
            found[by].append(episode)
            progress[by] = None if update is None else update.progress
    return [
        _Batch(*by[1:], sorted(found[by], key=lambda episode: episode.id), progress=progress[by])
        for by in sorted(found)
    ]


class _Memories:
    """Memories of credit between the updates of a stage, one for each policy (`CreditAssigner.memory`)."""

    def __init__(self, credit: CreditAssigner) -> None:
        self._credit = credit
        self._made: dict[tuple[str, str], StateValues | None] = {}

    def of(self, batch: _Batch, policy: str = "") -> StateValues | None:
        """The memory for a batch. Episodes that no update trained on are credited alone, and not remembered."""
        if not batch.trained:
            return None
        if (key := (batch.prefix, policy)) not in self._made:
            self._made[key] = self._credit.memory()
        return self._made[key]


def _of_all_policies(
    credit: CreditAssigner, batch: _Batch, recipe: Recipe | None, memories: _Memories
) -> tuple[list[EpisodeCredit], dict[str, Any]]:
    """Returns the credit of a batch, and its metrics. Metrics of an auxiliary policy are prefixed by its name."""
    iterations = 1 if recipe is None or recipe.train is None else recipe.train.iterations
    progress = batch.progress
    if progress is None:
        progress = batch.iteration / iterations if batch.split == "train" else 0.0
    assign = partial(credit.assign, progress=progress, iteration=batch.iteration)
    credits, metrics = assign(batch.members, memory=memories.of(batch))
    told: dict[str, Any] = dict(metrics)
    for name, settings in ({} if recipe is None else recipe.policies).items():
        if settings.train and (seen := own_views(batch.members, name, settings)):
            others, more = assign(seen, memory=memories.of(batch, name))
            credits = [*credits, *others]
            told |= {f"{name}/{key}": value for key, value in more.items()}
    return together(credits), told


def _same_as_trained(recipe: Recipe | None, path: Path) -> None:
    """Checks that the credit of a training can be recomputed from its episodes alone.

    Raises:
        StoreError: a penalty of models was part of it, or the curriculum chose what was credited.
    """
    if recipe is None or recipe.train is None:
        return
    parts = load_parts(recipe.curriculum, recipe.base, recipe.scripts)
    chose = [part.name for part in parts if isinstance(part, Filter) and type(part).select is not Filter.select]
    why = f"the curriculum ({', '.join(chose)}) chose the groups that were credited" if chose else ""
    if recipe.train.kl is not None and recipe.train.kl.place == "reward":
        why = "the KL penalty of models was part of the reward (train.kl.place)"
    if why:
        raise _other_credit(path, why)


def _other_credit(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{why}, which the stored episodes do not hold: the credit would not be that which trained",
        place=str(path),
        remedy="leave out --save, or name another --estimator",
    )


def _chosen(
    run: RunReader, stages: RunStages, stage: str | None, estimator: str | None, settings: dict[str, Any]
) -> tuple[CreditAssigner, str]:
    """Returns the credit assigner, and the prefix of the ids of the episodes that it applies to."""
    if estimator is not None:
        prefix = "" if stage is None else stages.chosen(stage)[1]
        return load_credit(CreditSettings(use=estimator, **settings), Path(run.info.get("base", ""))), prefix
    recipe, prefix = stages.chosen(stage)
    if recipe is None:
        raise StoreError("names no recipe", place=str(run.path), remedy="say which: --estimator NAME")
    return load_credit(CreditSettings(**{**recipe.credit.model_dump(), **settings}), recipe.base), prefix
