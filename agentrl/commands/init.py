"""`agentrl init`: creates a folder with a small complete environment as a starting point."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from agentrl.types.errors import RecipeError, nearest
from agentrl.types.paths import data_path

KINDS = {
    "calls": "a function-calling set: a database, a customer who speaks twice",
    "game": "a game whose moves are text",
    "repair": "a sandbox with a shell, code with a bug, hidden tests",
    "qa": "questions and answers in JSON lines, with a tool",
}
"""Templates, each a folder of tools/templates."""


def new_recipe(name: str, like: str, into: Path) -> list[Path]:
    """Writes the folder NAME.

    Args:
        like: one of `KINDS`.
        into: the parent folder.

    Returns:
        The files.

    Raises:
        RecipeError: the kind does not exist, or the name is not a valid recipe name or already exists.
    """
    if like not in KINDS:
        raise RecipeError(f"there is no kind {like!r}", place="--like", remedy=nearest(like, KINDS))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise RecipeError(f"{name!r} is no name of a recipe", place="NAME", remedy="take letters, digits, - and _")
    folder = into / name
    if folder.exists():
        raise RecipeError(f"there is a {folder} already", place="NAME", remedy="take another name, or move it away")
    shutil.copytree(data_path("tools", "templates", like), folder, ignore=shutil.ignore_patterns("__pycache__"))
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("name: NAME", f"name: {name}", 1))
    return sorted(path for path in folder.rglob("*") if path.is_file())
