"""Run directories to write to: a new one, or an existing one that the same command continues."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agentrl.api.run_files import hashes_of, warn_of_changes
from agentrl.config.engine import EngineSettings
from agentrl.config.recipe import Recipe, recipe_from_run
from agentrl.config.sections import may_change, section_at
from agentrl.registry.installed import versions_of
from agentrl.reporters.tracker import forget
from agentrl.store.checkpoints import about, best, checkpoints, latest
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import planned_id
from agentrl.types.errors import AgentRLError, RecipeError, StoreError
from agentrl.types.values import leaves
from agentrl.view.summary import failure_line

# By section: why a run cannot continue with another one. Settings that may change are marked where they are declared
# (`sections.MayChange`).
_WHY = {
    "seed": "it determines tasks, samples and the order of training",
    "tasks": "the run would mix episodes of different tasks",
    "agent": "the run would mix episodes of different agents",
    "script": "the run would mix episodes of different scripts",
    "replay": "the run would mix tokens sampled in different ways",
    "from_run": "the run would mix episodes of different runs",
    "tools": "the run would mix episodes with different tools",
    "sandbox": "the run would mix episodes in different sandboxes",
    "rewards": "the run would mix episodes scored by different rules",
    "reward_of": "the run would mix episodes scored by different rules",
    "gate": "the run would mix episodes scored by different rules",
    "credit": "the run would mix updates with different credit",
    "model": "the run would mix tokens of different policies",
    "policies": "the run would mix episodes with different policies",
    "engine": "the run would mix tokens sampled in different ways",
    "sampling": "the run would mix tokens sampled in different ways",
    "train": "the run would mix steps of different trainings",
    "warm_start": "its first weights came from other demonstrations",
    "stages": "the run would mix stages of different trainings",
    "curriculum": "the run would mix tasks drawn by different rules",
    "eval": "its evaluations would not be comparable",
}

# Commands that score or credit stored episodes again, without new rollouts.
_AGAIN = {
    "rewards.": "agentrl rescore {path} --recipe RECIPE scores its episodes by the new rewards",
    "reward_of": "agentrl rescore {path} --recipe RECIPE scores its episodes by the new rewards",
    "gate": "agentrl rescore {path} --recipe RECIPE scores its episodes by the new gates",
    "credit.": "agentrl credit {path} --estimator NAME --set KEY=VALUE credits its episodes by the new rule",
}

_NO_MODELS: Mapping[str, str] = {}
_SAME_COMMAND = "run the same command again"
_TOLD = 6  # differences that a message lists


def begin_run(
    path: Path,
    recipe: Recipe,
    command: str,
    *,
    tools: Iterable[dict[str, Any]] = (),
    models: Mapping[str, str] = _NO_MODELS,
    **info: Any,
) -> RunDir:
    """Creates the run directory, or opens it if the same command is given again.

    A run without data (no episode has ended, or all have failed) accepts a changed recipe and starts over with it.
    Warns if code in the recipe's folder, or a file that the recipe names, has changed since the run began.

    Args:
        tools: definitions of the recipe's tools, for viewers of the run. The last one of each name is stored.
        models: the commits of models of the Hugging Face Hub (`hub_models.at_commits`).

    Raises:
        StoreError: the directory holds a run of another recipe or another command, or other files.
    """
    resolved = json.loads(recipe.model_dump_json())
    described = {"command": command, "recipe": resolved, **info}
    offered = [*{tool["function"]["name"]: tool for tool in tools}.values()]
    opened, again = _continued(path, recipe, described) if (path / "run.json").exists() else (None, False)
    if opened is None:
        _refuse_other_files(path)
    with ExitStack() as unless_done:
        if opened is not None:
            unless_done.callback(opened.close)
        files = hashes_of(resolved, recipe.base)
        if opened is not None:
            noted: dict[str, Any] = {"tools": offered, "models": {**models}}
            noted = {key: value for key, value in noted.items() if (opened.info.get(key) or type(value)()) != value}
            if again:
                noted |= files
            else:
                warn_of_changes(opened, files)
            if noted:
                opened.update_info(**noted)
            unless_done.pop_all()
            return opened
    run = RunDir.create(path, {**described, **_where(recipe), **files, "tools": offered})
    if models:
        run.update_info(models=models)
    named = {value for key, value in leaves(resolved) if isinstance(value, str) and key.rpartition(".")[2] == "use"}
    if packages := versions_of(named, [recipe.base, *(file.parent for file in recipe.bases)]):
        run.update_info(versions={**run.info["versions"], **packages})
    return run


def _where(recipe: Recipe) -> dict[str, Any]:
    """Returns where a recipe was read, as `run.json` holds it."""
    return {"base": str(recipe.base), "bases": [*map(str, recipe.bases)], "profile": recipe.profile}


def _continued(path: Path, recipe: Recipe, described: dict[str, Any]) -> tuple[RunDir, bool]:
    """Opens a run, checks that it is of the same command and recipe, and notes what may change.

    Returns:
        The run, and whether it begins again: it holds no data.
    """
    run = RunDir.open(path)
    base, resolved = str(recipe.base), described["recipe"]
    where = _where(recipe)
    known = {key: run.info.get(key) for key in described}
    if known["recipe"] is not None:  # as this version reads and writes it
        known["recipe"] = json.loads(recipe_from_run({"base": base, **run.info}).model_dump_json())
    old, new = dict(leaves(known)), dict(leaves(described))
    for key in _added_stages(known["recipe"], resolved):
        new.pop(key)
    differing = {
        key.removeprefix("recipe."): f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not _may_change(key, resolved)
    }
    again = known["command"] == described["command"] and not _holds_data(run)
    if again:
        if differing:  # measurements of the first steps belong to the other recipe
            run.begin_again()
            forget(run.path)
        run.update_info(**described, **where, finished=False)
    elif differing:
        run.close()
        more = f"; and {len(differing) - _TOLD} more" if len(differing) > _TOLD else ""
        reasons = dict.fromkeys(why for key in differing if (why := _WHY.get(key.split(".")[0])))
        raise StoreError(
            f"holds a run that differs in {'; '.join([*differing.values()][:_TOLD])}{more}"
            + "".join(f"\n     {why}" for why in reasons),
            place=str(path),
            remedy="\n     ".join(_ways_on(path, recipe, [*differing])),
        )
    elif known != described or any(run.info.get(key) != value for key, value in where.items()):
        run.update_info(**described, **where, finished=False)
    return run, again


def _may_change(key: str, recipe: dict[str, Any]) -> bool:
    """Returns True if a run can continue with another value of a key (`sections.MayChange`)."""
    path = key.removeprefix("recipe.").split(".")
    section: Any = recipe
    for at, part in enumerate(path):
        section = section.get(part) if isinstance(section, dict) else None
        if section is not None and section_at(Recipe, path[: at + 1]) is EngineSettings:  # settings of its own
            engine = EngineSettings.model_validate(section).built_in
            return engine is not None and may_change(type(engine.settings), path[at + 1 :])
    return may_change(Recipe, path)


def _added_stages(old: Any, new: Any) -> list[str]:
    """The settings of stages that were added at the end: a run may continue with them."""
    had = len(old.get("stages", [])) if isinstance(old, dict) else 0
    added = {str(index): stage for index, stage in enumerate(new["stages"]) if index >= had > 0}
    return [key for key, _ in leaves({"recipe": {"stages": added}})] if added else []


@contextmanager
def closing(run: RunDir, again: str = "the same command continues") -> Iterator[None]:
    """Closes the run at the end. Ctrl-C prints one line on where the work is stored and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; finished work is kept in {run.path}: {again}") from None
    finally:
        run.close()


class EpisodesMissing(AgentRLError):
    """A command ended with missing episodes."""


def require_whole(path: Path) -> None:
    """Checks at the end of a command that no episode is missing.

    Raises:
        EpisodesMissing: with the number of failed episodes, the causes, and a remedy.
    """
    with RunDir.read(path) as run:
        rows, told, trains = run.rows(), run.failures(), run.info.get("command") == "train"
        planned = run.info.get("planned")
    data = {planned_id(row.id) for row in rows if row.status in ("done", "truncated")}
    failed = {planned_id(row.id): row for row in rows}  # the last attempt counts
    wanted = failed.keys() if planned is None else failed.keys() & set(planned)
    lost = {id: failed[id] for id in wanted if id not in data}
    if not lost:
        return
    kinds = Counter(row.error or row.status for row in lost.values())
    causes = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    ids = {row.id for row in lost.values()}
    last = next((entry for entry in reversed(told) if entry.get("episode") in ids and entry.get("final")), None)
    again = (
        f"training continued without them: agentrl show {path} --status {next(iter(lost.values())).status} lists them"
        if trains
        else f"fix the cause and {_SAME_COMMAND}: it adds the missing episodes"
    )
    own = str(last.get("message", "")).partition("\n  -> ")[2] if last is not None else ""
    raise EpisodesMissing(
        f"{len(lost)} of {len(wanted)} episodes ({len(lost) / len(wanted):.0%}) are missing: {causes}"
        + (f"; the last: {failure_line(last)}" if last is not None else ""),
        place=f"{path}, episode {last['episode']}, stage {last['stage']}" if last is not None else str(path),
        remedy=_joined(own, again),
    )


def _joined(own: str, again: str) -> str:
    """Joins the remedies of a failure and of its command, which may both end in running the command again."""
    if own.endswith(_SAME_COMMAND) and _SAME_COMMAND in again:
        return own + again.partition(_SAME_COMMAND)[2]
    return f"{own}\n     {again}" if own else again


def _holds_data(run: RunReader) -> bool:
    ended = any(run.rows(status=status, limit=1) for status in ("done", "truncated"))
    return ended or latest(run.path / "checkpoints") is not None


def _refuse_other_files(path: Path) -> None:
    """Raises StoreError unless `path` is free, or holds only files of an aborted start."""
    if path.is_file():
        raise StoreError("is a file", place=str(path), remedy="give a folder as --out")
    if path.exists() and any(not child.name.startswith(".run.json") for child in path.iterdir()):
        raise StoreError(
            "the folder contains files but no run",
            place=str(path),
            remedy=f"give an empty or a new folder: --out {free_folder(path)}",
        )


def _ways_on(path: Path, recipe: Recipe, keys: list[str]) -> Iterator[str]:
    """Remedies for a run that was made with another recipe, one line each. `keys`: the keys that differ."""
    yield f"to start a new run: --out {free_folder(path)} (this run is kept); to continue it: the original command"
    for section, hint in _AGAIN.items():
        if any(key.startswith(section) for key in keys):
            yield hint.format(path=path)
    if (newest := latest(path / "checkpoints")) is not None and not recipe.stages:
        sets = f"--set 'model={{path: {newest.resolve()}}}'"
        sets += " --set warm_start=null" if recipe.warm_start is not None else ""
        yield f"to start a new run from its newest weights: {sets} with that --out"


def free_folder(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


LAST, BEST = "last", "best"


def kept_checkpoint(run_folder: Path, name: str = LAST) -> Path:
    """A checkpoint of a run.

    Args:
        name: `last`; `best`, by `train.keep.best`; an iteration, of the last stage that has a checkpoint of it; or the
            name of its folder.

    Raises:
        RecipeError: the run has no such checkpoint.
    """
    root = run_folder / "checkpoints"
    kept = checkpoints(root)
    if not kept:
        raise RecipeError(f"{run_folder} has no checkpoint", remedy="agentrl train writes checkpoints")
    named = {LAST: kept[-1], **{folder.name: folder for folder in kept}}
    if name.isdigit():
        name = str(int(name))
        named |= {str(about(folder)["iteration"]): folder for folder in kept}
    if name == BEST and (found := best(root)) is not None:
        return found
    if name not in named:
        has = f"it has: {', '.join(folder.name for folder in kept)}"
        why = "train.keep.best names the metric that finds it; " if name == BEST else ""
        raise RecipeError(f"{run_folder} has no checkpoint {name!r}", place="--checkpoint", remedy=f"{why}{has}")
    return named[name]
