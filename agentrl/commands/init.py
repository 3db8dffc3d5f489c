"""`agentrl init`: creates a folder with a small complete environment as a starting point, or a package around one."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.registry.installed import group_of
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.paths import data_path

KINDS = {
    "calls": "a function-calling set: a database, a customer who speaks twice",
    "dialogue": "a dialogue with a simulated user, who tells only what is asked",
    "game": "a game whose moves are text",
    "picture": "pictures that are seen, and clicks on them",
    "program": "an agent that is a program with a prompt, a tool and a loop of its own",
    "qa": "questions and answers in JSON lines, with a tool",
    "repair": "a sandbox with a shell, code with a bug, hidden tests",
    "roles": "two roles in one episode, both of them the policy",
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
    folder = _new(name, like, into)
    _copy(like, folder, name)
    return _files(folder)


def new_package(name: str, like: str, into: Path) -> list[Path]:
    """Writes the folder NAME: a Python package with a recipe and a test, whose entry points recipes find by name.

    Args:
        like, into: as those of `new_recipe`.

    Returns:
        The files.

    Raises:
        RecipeError: as `new_recipe`, or the name belongs to a shipped recipe or to another module of Python.
    """
    folder, module = _new(name, like, into), re.sub(r"\W", "_", name).lower()
    why = None
    if not module.isidentifier() or keyword.iskeyword(module) or not name[-1].isalnum():
        why = "begin with a letter, end with a letter or digit, and take no keyword of Python"
    elif (data_path("recipes") / name).exists() or importlib.util.find_spec(module):
        why = "there is a shipped recipe, or a module of Python, of this name: take another"
    if why is not None:
        raise RecipeError(f"{name!r} cannot be the name of a package", place="NAME", remedy=why)
    shutil.copytree(data_path("tools", "package"), folder, ignore=_NOT_COPIED)
    code = folder / "src" / module
    _copy(like, code, name)
    (code / "__init__.py").write_text(f'"""{KINDS[like].capitalize()}."""\n')
    recipe = load_recipe(str(code))
    offers = "".join(_offers(recipe, name, module))
    extras = "[vision]" if recipe.about.images else ""
    for path in (path for path in _files(folder) if code not in path.parents):
        text = path.read_text().replace("NAME", name).replace("MODULE", module).replace("ABOUT", KINDS[like])
        path.write_text(text.replace("# OFFERS\n", offers).replace("EXTRAS", extras))
    return _files(folder)


def _offers(recipe: Recipe, name: str, module: str) -> Iterator[str]:
    """Yields a table of entry points for each kind of plug-in that is the recipe's own code."""
    for kind, chosen in (("agents", [recipe.agent]), ("rewards", recipe.rewards.values()), ("tools", recipe.tools)):
        own = [str(each.use).removeprefix("./") for each in chosen if str(each.use).startswith("./")]
        if own:
            lines = (
                f'{name}-{code.lower()} = "{module}.{file[:-3]}:{code}"'
                for file, _, code in (each.partition(":") for each in own)
            )
            yield "\n".join([f'[project.entry-points."{group_of(kind)}"]', *lines, "", ""])


_NOT_COPIED = shutil.ignore_patterns("__pycache__")


def _new(name: str, like: str, into: Path) -> Path:
    """Returns the folder NAME, which is not there yet."""
    if like not in KINDS:
        raise RecipeError(f"there is no kind {like!r}", place="--like", remedy=nearest(like, KINDS))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise RecipeError(f"{name!r} is no name of a recipe", place="NAME", remedy="take letters, digits, - and _")
    folder = into / name
    if folder.exists():
        raise RecipeError(f"there is a {folder} already", place="NAME", remedy="take another name, or move it away")
    return folder


def _copy(like: str, folder: Path, name: str) -> None:
    shutil.copytree(data_path("tools", "templates", like), folder, ignore=_NOT_COPIED)
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("name: NAME", f"name: {name}", 1))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
