"""Finds recipe files and reads them. A recipe is found by path, by folder, or by the name of a shipped one or of one
that an installed package offers."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from agentrl.registry.installed import RECIPES, Offered, folders_of, offered, offers
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.paths import data_path, neighbours

METHODS = "methods"
"""Folder of the recipes that add a published method to another recipe. Each is found by its name alone."""


def find_recipe(name: str) -> Path:
    """Returns the file of a recipe, given as a YAML path, a folder with a `recipe.yaml`, or the name of a recipe or
    method that is shipped or that an installed package offers. `NAME/other.yaml` is another file in the folder of the
    `recipe.yaml` of a name.

    Raises:
        RecipeError: none of these, which names the nearest known recipe; or the name is offered twice.
    """
    if (found := file_of(Path(name))) is not None:
        return found
    last = None if (alone := Path(name).name) == name else file_of(data_path("recipes") / alone)
    try:
        return find_named(name)
    except RecipeError:
        if last is not None:  # recipes/quickstart, wherever the working folder is
            return last
        if Path(name).is_dir():
            raise RecipeError(f"the folder {name} has no recipe.yaml") from None
        if (there := neighbours(Path(name))) is not None:  # of a path, for example of a checkpoint that is gone
            raise RecipeError(f"there is no {name!r}", remedy=there) from None
        raise


def find_named(name: str) -> Path:
    """Returns the file of a recipe or method that is shipped, or that an installed package offers.

    Raises:
        RecipeError: none has this name, which names the nearest one; or the name is offered twice.
    """
    shipped = data_path("recipes")
    places = (shipped / name, shipped / METHODS / name, shipped / METHODS / f"{name}.yaml")
    found = next((file for place in places if (file := file_of(place)) is not None), None)
    first, _, rest = name.partition("/")
    own = offered(first, RECIPES, "recipe", None if found is None or rest else str(found))
    if own is not None:
        return recipe_file(own, rest)
    if found is not None:
        return found
    names = [path.parent.name for folder in (Path(), shipped) for path in sorted(folder.glob("*/recipe.yaml"))]
    names += [each.name for each in offers(RECIPES)] + [method_name(path) for path in method_files()]
    raise RecipeError(f"there is no recipe {name!r}", remedy=nearest(name, names, "give a YAML file, or one of"))


def method_files() -> list[Path]:
    """Returns the files of the shipped methods: recipes that add a published method to another recipe."""
    folder = data_path("recipes", METHODS)
    return sorted([*folder.glob("*.yaml"), *folder.glob("*/recipe.yaml")], key=method_name)


def method_name(path: Path) -> str:
    """Returns the name under which commands find the file of a method."""
    return path.parent.name if path.name == "recipe.yaml" else path.stem


def file_of(path: Path) -> Path | None:
    """Returns the file itself, or the `recipe.yaml` of a folder; None: neither exists."""
    return next((each for each in (path, path / "recipe.yaml") if each.is_file()), None)


def recipe_file(own: Offered, rest: str = "") -> Path:
    """Returns the file of a recipe that an installed package offers. No code of the package runs.

    Args:
        rest: another file or folder next to its `recipe.yaml`.

    Raises:
        RecipeError: the package has no such file.
    """
    top, *parts = own.value.split(".")
    for folder in folders_of(own.value):
        if (found := file_of(folder.joinpath(*parts, rest or "recipe.yaml"))) is not None:
            return found
    file = f"{'/'.join([top, *parts])}/{rest or 'recipe.yaml'}"
    raise own.broken(f"it has no file {file}", remedy=f'pyproject.toml: {own.name} = "the.package.with.its.recipe"')


def read_tree(path: Path, what: str) -> CommentedMap:
    """Reads a YAML file with its line numbers.

    Raises:
        RecipeError: the file is not YAML, or not a mapping.
    """
    try:
        tree = copy.deepcopy(_parsed(path.read_text()))
    except (UnicodeDecodeError, ReaderError) as error:
        raise RecipeError(f"not a text in UTF-8: {error}", place=str(path)) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise RecipeError(f"not valid YAML: {error.problem or error.context}", place=f"{path}:{line}") from None
    if not isinstance(tree, CommentedMap):
        raise RecipeError(f"{what} must be a mapping, found {type(tree).__name__}", place=f"{path}:1")
    _unshare(tree, set())
    return tree


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """Returns the content of a YAML file; its reader takes ten times as long as a copy."""
    return YAML(typ="rt").load(text)


def _unshare(node: Any, seen: set[int]) -> None:
    """Gives each alias (`*name`) a copy of its own, so that a change of one place is no change of the other."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if isinstance(value, dict | list):
            if id(value) in seen:
                node[key] = value = copy.deepcopy(value)
            seen.add(id(value))
            _unshare(value, seen)
