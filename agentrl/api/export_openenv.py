"""A recipe as an environment server of OpenEnv: `agentrl env export RECIPE --to openenv --out DIR`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from agentrl.config.bases import read_recipe
from agentrl.config.files import find_recipe
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.rollouts.builder import build
from agentrl.types.errors import RecipeError
from agentrl.types.paths import data_path

NAMES_MORE = "        # and what recipe/README.md names"
"""The end of a line of the README, for recipes that have one themselves."""


def export(name: str, recipe: Recipe, overrides: Sequence[str], out: Path) -> Path:
    """Writes a folder: the recipe's folder, a server, and a client.

    Args:
        name: path or name of the recipe.
        recipe: the same, loaded.
        overrides: of its keys, which the server applies as well.

    Raises:
        RecipeError: `out` exists, or the recipe is not self-contained; the folder is then removed.
        AgentRLError: the recipe has an error in its own folder, too.
    """
    file = check_alone(name, recipe, out)
    module = re.sub(r"\W", "_", recipe.name)
    shutil.copytree(data_path("tools", "openenv"), out, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (path for path in out.rglob("*") if path.is_file()):
        path.write_text(path.read_text().replace("NAME", recipe.name).replace("MODULE", module))
    if not (recipe.base / "README.md").is_file():
        readme = out / "README.md"
        readme.write_text(readme.read_text().replace(NAMES_MORE, ""))
    name_recipe(out / "server" / "app.py", file, overrides)
    copy_recipe(recipe, file, overrides, out / "recipe", out)
    return out


def check_alone(name: str, recipe: Recipe, out: Path) -> Path:
    """Checks that a recipe can be exported as a server to `out`. Returns its file.

    Raises:
        RecipeError: `out` exists, or the recipe's base lies in another folder.
        AgentRLError: the recipe has an error in its own folder, too.
    """
    if out.exists():
        raise RecipeError(f"there is a {out} already", place="--out", remedy="take another folder, or move it away")
    _prove(recipe)
    file = find_recipe(name)
    if (base := read_recipe(file).files[-1].resolve()).parent != file.resolve().parent:
        raise RecipeError(f"the recipe is not self-contained: its base is {base}", place=str(file))
    return file


def name_recipe(program: Path, file: Path, overrides: Sequence[str]) -> None:
    """Writes the name of the recipe's file, and the overrides of its keys, into an exported program."""
    said = program.read_text().replace('"FILE"', json.dumps(file.name))
    program.write_text(said.replace("OVERRIDES: list[str] = []", f"OVERRIDES: list[str] = {[*overrides]!r}"))


def copy_recipe(recipe: Recipe, file: Path, overrides: Sequence[str], to: Path, out: Path) -> None:
    """Copies the folder of a recipe, and checks that it can be built there.

    Raises:
        RecipeError: it cannot; the folder `out` is then removed.
    """
    shutil.copytree(recipe.base, to, ignore=shutil.ignore_patterns("__pycache__", "runs", ".venv*", ".git"))
    try:
        _prove(load_recipe(str(to / file.name), overrides))
    except Exception as error:
        shutil.rmtree(out)
        raise RecipeError(
            f"the recipe does not stand alone: {error}", remedy=f"keep all that it uses in {recipe.base}"
        ) from error


def _prove(recipe: Recipe) -> None:
    """Builds a recipe and its tasks as its server will."""
    len(build(recipe).tasks)
