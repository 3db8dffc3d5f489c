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
    if out.exists():
        raise RecipeError(f"there is a {out} already", place="--out", remedy="take another folder, or move it away")
    _prove(recipe)
    file = find_recipe(name)
    if (base := read_recipe(file).files[-1].resolve()).parent != file.resolve().parent:
        raise RecipeError(f"the recipe is not self-contained: its base is {base}", place=str(file))
    module = re.sub(r"\W", "_", recipe.name)
    shutil.copytree(data_path("tools", "openenv"), out, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (path for path in out.rglob("*") if path.is_file()):
        path.write_text(path.read_text().replace("NAME", recipe.name).replace("MODULE", module))
    if not (recipe.base / "README.md").is_file():
        readme = out / "README.md"
        readme.write_text(readme.read_text().replace(NAMES_MORE, ""))
    app = out / "server" / "app.py"
    said = app.read_text().replace('"FILE"', json.dumps(file.name))
    app.write_text(said.replace("OVERRIDES: list[str] = []", f"OVERRIDES: list[str] = {[*overrides]!r}"))
    shutil.copytree(recipe.base, out / "recipe", ignore=shutil.ignore_patterns("__pycache__", "runs", ".venv*", ".git"))
    try:
        _prove(load_recipe(str(out / "recipe" / file.name), overrides))
    except Exception as error:
        shutil.rmtree(out)
        raise RecipeError(
            f"the recipe does not stand alone: {error}", remedy=f"keep all that it uses in {recipe.base}"
        ) from error
    return out


def _prove(recipe: Recipe) -> None:
    """Builds a recipe and its tasks as its server will."""
    len(build(recipe).tasks)
