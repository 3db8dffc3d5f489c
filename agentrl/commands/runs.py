"""Opening run directories for commands: new, or the same command again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.recipe import Recipe, recipe_from_run
from agentrl.store.run_dir import RunDir

# What may differ between two starts of one run without making it another run.
FREE = {"concurrency", "limits"}


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
    differing = sorted(
        key
        for key in resolved.keys() | run.info["recipe"].keys()
        if key not in FREE and resolved.get(key) != run.info["recipe"].get(key)
    )
    changed = [key for key, value in {"command": command, **info}.items() if run.info.get(key) != value]
    if differing or changed:
        run.close()
        raise StoreError(
            f"holds a run that differs in: {', '.join(changed + [f'recipe.{key}' for key in differing])}",
            place=str(path),
            remedy="give another --out, or the same command to continue",
        )
    return run


def recipe_of(run: RunDir) -> Recipe:
    """The recipe that a stored run was made with."""
    return recipe_from_run(run.info)
