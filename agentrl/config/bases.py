"""Recipes that are written on top of another: `base: ../search-qa/fiction.yaml`, and the keys that differ.

The keys of such a recipe are merged over those of its base, as a profile is. Its `control` section holds the keys that
take its method out again, for a comparison: `--profile control`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.files import file_of, find_named
from agentrl.config.origins import Loc, Origins, RecipeLayer, line_of, note, spelled_out
from agentrl.config.profiles import CONTROL, merge, read_tree
from agentrl.config.recipe import Recipe
from agentrl.config.sections import IS_FILE, Section, Short, section_at
from agentrl.types.errors import RecipeError
from agentrl.types.paths import RELATIVE

BASE = "base"
OWN = ("name", "about", CONTROL)
"""Sections that a recipe does not take from its base: what was measured there says nothing about this one."""


@dataclass(frozen=True)
class Merged:
    """The tree of a recipe with its bases.

    Attributes:
        files: its own file, the base of that, and so on.
        origins: of all keys.
    """

    tree: dict[str, Any]
    files: tuple[Path, ...]
    origins: Origins


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


def read_recipe(path: Path) -> Merged:
    """Reads the file of a recipe, and the bases that it names.

    Raises:
        RecipeError: a file is not a mapping in YAML, or a base does not exist or refers back.
    """
    return on_base(read_tree(path, "a recipe"), path)


def on_base(tree: dict[str, Any], path: Path, above: tuple[Path, ...] = ()) -> Merged:
    """Merges a recipe over the base that it names; without one it stays as it is.

    Args:
        path: the recipe's file, from which the base is found.
        above: files that have this one as their base.

    Raises:
        RecipeError: see `read_recipe`.
    """
    layer = RecipeLayer(path)
    if BASE not in tree:
        origins: Origins = {}
        for key, value in tree.items():
            note(origins, (str(key),), value, layer, line_of(tree, key))
        return Merged(tree, (path,), origins)
    place = f"{path}:{(line_of(tree, BASE) or 0) + 1}"
    folder, chain = path.resolve().parent, (*above, path.resolve())
    under = _find_base(tree[BASE], folder, place).resolve()
    if under in chain:
        raise RecipeError(f"base: {under} is this recipe, or has it as a base", place=place, remedy="name another one")
    below = on_base(read_tree(under, "a recipe"), under, chain)
    merged = _moved(below.tree, under.parent, folder)
    for key in OWN:
        merged.pop(key, None)
    origins = {loc: said for loc, said in below.origins.items() if loc[0] not in OWN}
    merge(merged, tree, origins, layer, without=(BASE, CONTROL))
    if CONTROL in tree:
        merged[CONTROL] = tree[CONTROL]
    merged.setdefault("name", folder.name if path.name == "recipe.yaml" else path.stem)
    return Merged(merged, (path, *below.files), origins)


def _find_base(name: Any, folder: Path, place: str) -> Path:
    """Returns the file of a base: a path relative to the recipe's folder, or the name of a shipped recipe or of one
    that an installed package offers. The working folder does not matter."""
    if not isinstance(name, str):
        raise RecipeError(f"base must be a recipe, found {name!r}", place=place, remedy="base: ../other/recipe.yaml")
    if (beside := file_of(Path(os.path.normpath(folder / name)))) is not None:
        return beside
    if name.startswith((*RELATIVE, "/")):
        raise RecipeError(f"base: there is no recipe {name!r}", place=place, remedy=f"paths are relative to {folder}")
    try:
        return find_named(name)
    except RecipeError as error:
        raise RecipeError(f"base: {error.message}", place=place, remedy=error.remedy) from None


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
