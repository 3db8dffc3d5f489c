"""Checks the tree of a recipe against its sections; every error has a place and a remedy."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config.layers import Problem, RecipeTree
from agentrl.config.peers import told_of_peer
from agentrl.config.profiles import CONTROL
from agentrl.config.recipe import Recipe
from agentrl.config.sections import EVERY, section_at, with_changed
from agentrl.registry.settings import in_words
from agentrl.types.errors import nearest
from agentrl.types.forms import united

PATHS = (
    ("model", "path"),
    ("model", "template"),
    ("policies", EVERY, "checkpoint"),
    ("train", "teacher", "path"),
    ("stages", EVERY, "rl", "train", "teacher", "path"),
)
"""Keys whose paths are resolved when the recipe is loaded, if they begin with `./` or `../`: relative to the recipe's
folder, of a profile to the profile's, and of overrides on the command line to the working folder."""


def validated(tree: RecipeTree, profile: str | None, base: Path) -> Recipe:
    """Makes the recipe of a tree. Relative paths in it are resolved.

    Args:
        base: the recipe's folder.

    Raises:
        RecipeError: one for all errors, with the place of each.
    """
    plain = _plain(tree.values)
    plain.pop(CONTROL, None)
    problems = list(_unstorable(plain))
    if not problems:
        try:
            recipe = Recipe.model_validate(plain)
        except ValidationError as error:
            problems = [_problem(found) for found in united(error.errors(), plain)]
    if problems:
        raise tree.refusal(problems)
    recipe._base, recipe._bases = base, tree.files[1:]
    recipe._profile = profile
    recipe._places = {".".join(loc): origin.place for loc, origin in tree.origins.items()}
    for key in PATHS:
        recipe = with_changed(recipe, key, lambda path, loc: tree.resolved(path, loc, base))
    return recipe


def _plain(node: Any) -> Any:
    """Ruamel's containers and scalars as plain Python objects."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _unstorable(node: Any, loc: tuple[Any, ...] = ()) -> Iterator[Problem]:
    """Values that YAML has and JSON does not (infinities, dates, sets). A run could not store and restore them."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _unstorable(value, (*loc, key))
    elif (isinstance(node, float) and not math.isfinite(node)) or not isinstance(node, str | int | float | None):
        remedy = "write a finite number" if isinstance(node, float) else f"write it in quotes: '{node}'"
        yield Problem(loc, f"{node!r} is not a value that a run can store", remedy)


def _problem(found: Any) -> Problem:
    """Returns an error of pydantic in the words of recipes."""
    loc = (*found["loc"], found["ctx"]["key"]) if found["type"] == "unknown_key" else tuple(found["loc"])
    message, remedy = _WORDS.get(found["type"], _in_words)(found, loc)
    return Problem(loc, message, remedy)


def _unknown(found: Any, loc: tuple[Any, ...]) -> tuple[str, str]:
    word, allowed = str(loc[-1]), _allowed(loc[:-1])
    is_a_slip = difflib.get_close_matches(word, allowed, 1, 0.85)
    told = None if is_a_slip else told_of_peer(word, ".".join(map(str, loc[:-1])))
    listed = f"allowed here: {', '.join(allowed) or 'none'}"
    return "unknown key", nearest(word, allowed, "allowed here") if told is None else f"{told}; {listed}"


def _no_section(found: Any, loc: tuple[Any, ...]) -> tuple[str, str]:
    message = f"must be a section of keys, found {found.get('input')!r}"
    return message, f"its keys: {', '.join(_allowed(loc))}"


def _no_mapping(found: Any, loc: tuple[Any, ...]) -> tuple[str, str]:
    """The remedy is the mapping that a list of names, or one name, was meant to be."""
    given = found.get("input")
    message, listed = f"must be a mapping of names to settings, found {given!r}", given
    if not isinstance(given, list):
        listed = [given]
    if not listed or not all(isinstance(each, str) for each in listed):
        return message, "NAME: SETTINGS"
    settings = ", ".join(f"{_NAME.sub('_', each.rpartition(':')[2])}: {each}" for each in listed[:3] if each)
    return message, f"give each a name: {loc[-1]}: {{{settings}}}"


def _in_words(found: Any, loc: tuple[Any, ...]) -> tuple[str, str | None]:
    keys = _allowed(loc) if found["type"] == "forms" else []
    return in_words(found), f"keys of the section: {', '.join(keys)}" if keys else None


_NAME = re.compile(r"\W+")
_WORDS: dict[str, Callable[[Any, tuple[Any, ...]], tuple[str, str | None]]] = {
    **dict.fromkeys(("extra_forbidden", "unknown_key"), _unknown),
    "misplaced": lambda found, loc: (found["msg"], found["ctx"]["remedy"]),
    "missing": lambda found, loc: ("is required and missing", None),
    **dict.fromkeys(("model_type", "model_attributes_type"), _no_section),
    "dict_type": _no_mapping,
}
"""Message and remedy by the type of pydantic's error; all others are told by `_in_words`."""


def _allowed(loc: tuple[Any, ...]) -> list[str]:
    """Returns the allowed keys of the section at `loc`."""
    section = section_at(Recipe, loc)
    return sorted(section.model_fields) if section is not None else []
