"""The models of the Hugging Face Hub that a recipe names, at the commits that a run records."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.config.sections import with_changed
from agentrl.models.hub import fetch_commit, is_hub_name
from agentrl.store.info import read_info
from agentrl.types.errors import RecipeError

Commits = dict[str, str]
"""The commit of each model, by `OWNER/NAME` or `OWNER/NAME@REVISION` as the recipe names it."""


def at_commits(recipe: Recipe, run: Path | None, *, trains: bool = False) -> tuple[Recipe, Commits]:
    """Downloads the models of the Hub that a command loads, and names their commits in the recipe.

    A branch moves on; the run, what resumes it and what reads it later use one commit.

    Args:
        run: the run directory: the commits that it has recorded are used again. None: the command records no run.
        trains: the command also loads teachers.

    Returns:
        The recipe, with commits as revisions, and the commits for `run.json`.

    Raises:
        RecipeError: the Hub does not give a model, or cannot be reached and the cache lacks it; with the place in the
            recipe.
    """
    recorded = {} if run is None or not (run / "run.json").exists() else read_info(run).get("models", {})
    commits: Commits = {}
    for path, name, revision in _named(recipe, trains):
        if name is None or not is_hub_name(name):
            continue
        asked = name if revision is None else f"{name}@{revision}"
        if asked not in commits:
            try:
                commits[asked] = fetch_commit(name, recorded.get(asked, revision))
            except RecipeError as error:
                raise RecipeError(error.message, place=recipe.place_of(".".join(path)), remedy=error.remedy) from error
        recipe = with_changed(recipe, path[:-1], partial(_at, commits[asked]))
    return recipe, commits


def _named(recipe: Recipe, trains: bool) -> Iterator[tuple[tuple[str, ...], str | None, str | None]]:
    """Yields the models that a command loads: the path of the key, the name and the revision."""
    if (model := recipe.model) is not None and recipe.engine.weights != "own":  # an API has its own
        yield ("model", "path"), model.path, model.revision
    for name, each in recipe.policies.items():
        if isinstance(each.checkpoint, str):
            yield ("policies", name, "checkpoint"), each.checkpoint, each.revision
    learning = {("train",): recipe.train} | {
        ("stages", str(k), "rl", "train"): each.rl.train for k, each in enumerate(recipe.stages) if each.rl is not None
    }
    for path, train in learning.items():
        if trains and train is not None and (teacher := train.teacher) is not None:
            yield (*path, "teacher", "path"), teacher.path, teacher.revision


def _at(commit: str, section: Any, path: tuple[str, ...]) -> Any:
    return section.model_copy(update={"revision": commit})
