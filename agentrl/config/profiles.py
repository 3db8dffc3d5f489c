"""Profiles: what of a recipe differs from machine to machine, as overlays (`--profile laptop | gpu | node | PATH`).

A profile is a part of a recipe: engine, model, adapters, batch, staleness. It is merged over the recipe's file, and
overrides are applied after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.files import read_tree
from agentrl.config.layers import RecipeLayer, RecipeTree, line_of
from agentrl.config.recipe import Recipe
from agentrl.config.sections import section_at
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.paths import data_path

SUFFIX = ".profile.yaml"
WHEN = "when"
"""Key of a profile: overlays by the key that a recipe must have, `{model.scratch: {...}}`; `*` stands for any name."""

CONTROL = "control"
"""Key of a recipe: the profile that takes its method out again. As a profile it has this name."""

_OF_THE_TASK = ("name", "tasks")
"""Sections that no profile may set: with another name or other tasks it would be another recipe."""


def shipped_profiles() -> list[str]:
    """Returns the names of the shipped profiles."""
    return sorted(path.name.removesuffix(SUFFIX) for path in data_path("recipes").glob(f"*{SUFFIX}"))


def find_profile(name: str) -> Path:
    """Returns the file of a profile, given by the name of a shipped one or as the path of a YAML file.

    Raises:
        RecipeError: neither; names the shipped ones.
    """
    if name in (shipped := shipped_profiles()):
        return data_path("recipes", name + SUFFIX)
    if Path(name).is_file():
        return Path(name)
    remedy = nearest(name, shipped, "give a YAML file, or one of")
    raise RecipeError(f"there is no profile {name!r}", place=f"--profile {name}", remedy=remedy)


def overlay(
    tree: RecipeTree, profile: str | None, overrides: Sequence[str] = (), *, without: Sequence[str] = ()
) -> None:
    """Lays a profile over the tree of a recipe, and then overrides.

    Args:
        without: sections of the profile that are left out.

    Raises:
        RecipeError: the profile does not exist, is not a mapping, or sets what belongs to the task; it is `control`
            and the recipe has no such section; or an override is wrong.
    """
    for values, layer in _control_of(tree) if profile == CONTROL else _overlays(tree, profile):
        tree.lay(values, layer, without=without)
    for override in overrides:
        tree.set(override)


_Overlays = list[tuple[Mapping[str, Any], RecipeLayer]]


def _control_of(tree: RecipeTree) -> _Overlays:
    """Returns the `control` section of a recipe, which takes its method out."""
    control = tree.values.get(CONTROL)
    if not isinstance(control, Mapping) or not control:
        raise RecipeError(
            "the recipe has no section 'control': the keys that take its method out",
            place=str(tree.files[0]),
            remedy="name the recipe's file, with for example control: {credit: grpo}",
        )
    named = {"name": f"{control.get('name') or tree.values.get('name', 'recipe')}-{CONTROL}"}
    layer = RecipeLayer(tree.files[0], f"profile {CONTROL}")
    return [(control, layer), (named, layer)]


def _overlays(tree: RecipeTree, profile: str | None) -> _Overlays:
    """Returns a profile, and its overlays for keys that the recipe has."""
    if profile is None:
        return []
    path = find_profile(profile)
    values = read_tree(path, "a profile")
    conditions = values.pop(WHEN, None) or {}
    _check(values, conditions, path)
    layer = RecipeLayer(path, f"profile {profile}", path.resolve().parent)
    return [(values, layer), *((each, layer) for key, each in conditions.items() if _has(tree.values, key))]


def _check(profile: Mapping[str, Any], conditions: Any, path: Path) -> None:
    """Raises RecipeError if the profile is a recipe, or a condition names no key of recipes."""
    for key in _OF_THE_TASK:
        if key in profile:
            raise RecipeError(
                f"a profile has no {key!r}: it says what differs on a machine, for any recipe",
                place=f"{path}:{(line_of(profile, key) or 0) + 1}",
                remedy="engine, model, train, scale, concurrency, ...",
            )
    if not isinstance(conditions, Mapping):
        raise RecipeError(f"{WHEN} must be a mapping of keys to overlays", place=str(path))
    for key, overlay in conditions.items():
        place = f"{path}:{(line_of(conditions, key) or 0) + 1}"
        *above, last = str(key).split(".")
        section = section_at(Recipe, above) if above else Recipe
        if section is None or last not in section.model_fields:
            known = sorted(section.model_fields) if section is not None else []
            raise RecipeError(f"{WHEN}: recipes have no key {key!r}", place=place, remedy=nearest(last, known, "keys"))
        if not isinstance(overlay, Mapping):
            raise RecipeError(f"{WHEN}.{key} must be a mapping, found {overlay!r}", place=place)


def _has(tree: Any, key: str) -> bool:
    """Returns True if the recipe sets the key, to something that is neither null nor false; `*` is any key."""
    part, _, rest = key.partition(".")
    found = tree if isinstance(tree, Mapping) else {}
    values = list(found.values()) if part == "*" else [found.get(part)]
    return any(_has(value, rest) if rest else value is not None and value is not False for value in values)
