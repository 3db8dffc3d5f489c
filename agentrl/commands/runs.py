"""Opening run directories for commands: new, or the same command again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.recipe import Recipe, recipe_from_run
from agentrl.store.run_dir import RunDir

# What may differ between two starts of one run without making it another run: how much of it, not what.
FREE = ("concurrency", "scale.", "limits.", "eval.every", "train.iterations", "train.checkpoint_every")

_TOLD = 6  # differences that a message names


def open_run(path: Path, recipe: Recipe, command: str, **info: Any) -> RunDir:
    """Creates the run directory, or opens it if the same command is given again.

    Raises:
        StoreError: the directory holds a run of another recipe or another command.
    """
    resolved = json.loads(recipe.model_dump_json())
    described = {"command": command, "recipe": resolved, "base": str(recipe.base), **info}
    if not (path / "run.json").exists():
        return RunDir.create(path, described)
    run = RunDir.open(path)
    known = {key: run.info.get(key) for key in described}
    old, new = dict(_leaves(known)), dict(_leaves(described))
    differing = [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.removeprefix("recipe.").startswith(FREE)
    ]
    if differing:
        run.close()
        more = f"; and {len(differing) - _TOLD} more" if len(differing) > _TOLD else ""
        raise StoreError(
            f"holds a run that differs in {'; '.join(differing[:_TOLD])}{more}",
            place=str(path),
            remedy="give another --out, or the same command to continue",
        )
    if known != described:
        run.update_info(**described, finished=False)
    return run


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


def free_folder(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def recipe_of(run: RunDir) -> Recipe:
    """The recipe that a stored run was made with."""
    return recipe_from_run(run.info)
