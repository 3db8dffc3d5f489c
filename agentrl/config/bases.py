"""Recipes that are written on top of another: `base: ../search-qa/fiction.yaml`, and the keys that differ.

The keys of such a recipe are merged over those of its base, as a profile is. Its `control` section holds the keys that
take its method out again, for a comparison: `--profile control`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.config.files import file_of, find_named, read_tree
from agentrl.config.layers import Loc, RecipeLayer, RecipeTree, line_of, spelled_out
from agentrl.config.profiles import CONTROL
from agentrl.config.recipe import Recipe
from agentrl.config.sections import IS_FILE, Section, Short, section_at
from agentrl.types.errors import RecipeError
from agentrl.types.paths import RELATIVE

BASE = "base"
OWN = ("name", "about", CONTROL)
"""Sections that a recipe does not take from its base: what was measured there says nothing about this one."""


def recipe_schema() -> dict[str, Any]:
    """Returns the JSON schema of recipe files. A file without `name` needs a `base`."""
    schema = Recipe.model_json_schema()
    keys = schema["properties"]
    own = {
        BASE: {
            "type": "string",
            "description": "The recipe that this one is written on top of: a path relative to this file, or a name "
            "(docs/methods.md).",
        },
        CONTROL: {
            "type": "object",
            "description": "Keys that take the method out again: the profile `control` (docs/methods.md).",
            "properties": {key: {"$ref": f"#/properties/{key}"} for key in keys},
            "additionalProperties": False,
        },
    }
    del schema["required"]
    return {**schema, "properties": {**keys, **own}, "anyOf": [{"required": ["name"]}, {"required": [BASE]}]}


def read_recipe(path: Path) -> RecipeTree:
    """Reads the file of a recipe, and the bases that it names.

    Raises:
        RecipeError: a file is not a mapping in YAML, or a base does not exist or refers back.
    """
    return on_base(read_tree(path, "a recipe"), path)


def on_base(values: dict[str, Any], path: Path) -> RecipeTree:
    """Lays a recipe over the base that it names, and that over its own; without one it stays as it is.

    Args:
        path: the recipe's file, from which the base is found.

    Raises:
        RecipeError: see `read_recipe`.
    """
    files, texts = [path], [values]
    while BASE in texts[-1]:
        under = _find_base(texts[-1], files[-1])
        if under in [file.resolve() for file in files]:
            place = _place_of_base(texts[-1], files[-1])
            raise RecipeError(
                f"base: {under} is this recipe, or has it as a base", place=place, remedy="name another one"
            )
        files.append(under)
        texts.append(read_tree(under, "a recipe"))
    tree = RecipeTree({}, ())
    for file, text in zip(reversed(files), reversed(texts), strict=True):
        _lay(tree, text, file)
    return tree


def _lay(tree: RecipeTree, values: dict[str, Any], file: Path) -> None:
    """Lays a recipe over the tree of its base. Paths in the tree are then relative to the folder of the recipe."""
    folder = file.resolve().parent
    if tree.files:
        tree.values = _moved(tree.values, tree.files[0].parent, folder)
        for key in OWN:
            tree.values.pop(key, None)
        tree.origins = {loc: origin for loc, origin in tree.origins.items() if loc[0] not in OWN}
    tree.lay(values, RecipeLayer(file), without=(BASE, CONTROL))
    if CONTROL in values:
        tree.values[CONTROL] = values[CONTROL]
    if tree.files:
        tree.values.setdefault("name", folder.name if file.name == "recipe.yaml" else file.stem)
    tree.files = (file, *tree.files)


def _find_base(values: dict[str, Any], file: Path) -> Path:
    """Returns the file of the base: a path relative to the recipe's folder, or the name of a shipped recipe or of one
    that an installed package offers. The working folder does not matter."""
    name, folder, place = values[BASE], file.resolve().parent, _place_of_base(values, file)
    if not isinstance(name, str):
        raise RecipeError(f"base must be a recipe, found {name!r}", place=place, remedy="base: ../other/recipe.yaml")
    if (found := file_of(Path(os.path.normpath(folder / name)))) is not None:
        return found.resolve()
    if name.startswith((*RELATIVE, "/")):
        raise RecipeError(f"base: there is no recipe {name!r}", place=place, remedy=f"paths are relative to {folder}")
    try:
        return find_named(name).resolve()
    except RecipeError as error:
        raise RecipeError(f"base: {error.message}", place=place, remedy=error.remedy) from None


def _place_of_base(values: dict[str, Any], file: Path) -> str:
    return f"{file}:{(line_of(values, BASE) or 0) + 1}"


def _moved(value: Any, old: Path, new: Path, loc: Loc = ()) -> Any:
    """Spells a part of a base out, and rewrites its paths and references so that they name the same from the folder
    `new`. The schema says which settings these are; other texts that begin with `./` may be meant for a sandbox."""
    with suppress(ValueError):  # the check of the recipe tells it
        value = value if value is None else spelled_out(loc, value)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    section = section_at(Recipe, loc)
    for key, each in list(items):
        mark = section.names_file(key, value) if section is not None and issubclass(section, Section | Short) else None
        below = (*loc, str(key))
        value[key] = _moved(each, old, new, below) if mark is None else _renamed(each, old, new, always=mark is IS_FILE)
    return value


def _renamed(value: Any, old: Path, new: Path, *, always: bool) -> Any:
    """Rewrites the texts of a setting that names files. `always`: without `./` they are relative as well."""
    if isinstance(value, dict):
        return {key: _renamed(each, old, new, always=always) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, old, new, always=always) for each in value]
    if not isinstance(value, str) or not (always or value.startswith(RELATIVE)) or os.path.isabs(value):
        return value
    file, colon, name = value.partition(":")
    # Links are not followed: a virtual environment is recognised by the link to its interpreter.
    found = os.path.relpath(os.path.abspath(old / file), new)
    return (found if found.startswith(RELATIVE) else f"./{found}") + colon + name
