"""`agentrl init`: a folder with a small environment that is whole, to start one's own from."""

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
"""What there is to start from, each a folder of tools/templates."""


def new_recipe(name: str, like: str, into: Path) -> list[Path]:
    """Writes the folder NAME.

    Args:
        like: one of `KINDS`.
        into: where the folder is made.

    Returns:
        The files.

    Raises:
        RecipeError: there is no such kind, the name cannot be that of a recipe, or there is something of that name.
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
