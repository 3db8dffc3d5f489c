"""Loads recipes: from files, from mappings, or from loaded ones, with a profile and overrides."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from agentrl.config.bases import on_base, read_recipe
from agentrl.config.files import find_recipe
from agentrl.config.layers import RecipeTree, set_in
from agentrl.config.profiles import CONTROL, overlay
from agentrl.config.recipe import KINDS, Recipe, TrainSection
from agentrl.config.validation import validated
from agentrl.types.errors import RecipeError


def load_recipe(
    given: str | Mapping[str, Any] | Recipe,
    overrides: Sequence[str] = (),
    profile: str | None = None,
    *,
    place: Path | None = None,
    without: tuple[str, ...] = (),
) -> Recipe:
    """Loads and checks a recipe.

    Args:
        given: a path or a name; the sections of a recipe, whose folder is the working folder; or a loaded recipe.
        overrides: `dotted.path=value`, the value in YAML; later ones win.
        profile: a shipped profile (laptop, gpu, node) or a YAML file, merged over the recipe before the overrides.
        place: file of a loaded recipe, for messages.
        without: sections of the profile that are left out.

    Raises:
        RecipeError: with file:line, the path of the key, the found and the allowed values.
    """
    return _loaded(given, overrides, profile, place, without)[1]


def _loaded(
    given: str | Mapping[str, Any] | Recipe,
    overrides: Sequence[str],
    profile: str | None,
    place: Path | None = None,
    without: tuple[str, ...] = (),
) -> tuple[RecipeTree, Recipe]:
    """Returns a recipe and the tree that it was made of."""
    treated = _loaded(given, overrides, None)[1] if profile == CONTROL else None
    if isinstance(given, Recipe):
        tree, base = RecipeTree(_dumped(given), (place or given.base, *given.bases)), given.base
    elif isinstance(given, Mapping):
        tree, base = on_base(copy.deepcopy(dict(given)), Path("recipe")), Path.cwd()
    else:
        file = find_recipe(given)
        tree, base = read_recipe(file), file.resolve().parent
    overlay(tree, profile, overrides, without=without)
    before = given.profile if isinstance(given, Recipe) else None
    recipe = validated(tree, profile or before, base)
    if treated is not None and recipe.model_dump(exclude={"name"}) == treated.model_dump(exclude={"name"}):
        raise RecipeError(
            "'control' changes nothing: the recipe has its values already",
            place=next(key.place for key in tree.origins.values() if key.layer.name == f"profile {CONTROL}"),
            remedy="name the keys that make the method, with the values that they have without it",
        )
    return tree, recipe


def _dumped(recipe: Recipe) -> dict[str, Any]:
    """Returns the sections of a loaded recipe. Stages lack the keys of `train` that have the recipe's value: they
    inherit them again, also from an override."""
    tree: dict[str, Any] = json.loads(recipe.model_dump_json())
    train = tree["train"] or TrainSection().model_dump(mode="json")
    for section in (stage[kind] for stage in tree["stages"] for kind in KINDS if stage[kind] is not None):
        section["train"] = {key: value for key, value in section["train"].items() if value != train[key]}
    return tree


def explain_recipe(name: str, overrides: Sequence[str] = (), profile: str | None = None) -> str:
    """The fully resolved recipe as YAML. A comment behind each key says where it was set; none: it is a default.

    Raises:
        RecipeError: as `load_recipe`.
    """
    tree, recipe = _loaded(name, overrides, profile)
    names = tree.labels()

    def commented(value: Any, loc: tuple[str, ...] = ()) -> Any:
        """The value as a YAML node with the comments behind its leaves."""
        if not isinstance(value, dict | list) or not value:
            return value
        node: Any = CommentedMap() if isinstance(value, dict) else CommentedSeq()
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            below = (*loc, str(key))
            inner = commented(item, below)
            node.append(inner) if isinstance(node, CommentedSeq) else node.update({key: inner})
            if inner is item and (origin := tree.origin_of(below)) is not None:
                line = "" if origin.line is None or origin.layer.name is not None else f":{origin.line + 1}"
                node.yaml_add_eol_comment(names[origin.layer] + line, key, column=0)
        return node

    out, yaml = io.StringIO(), YAML()
    yaml.default_flow_style, yaml.width = False, 1 << 16  # a comment ends a line
    yaml.dump(commented(json.loads(recipe.model_dump_json())), out)
    return out.getvalue()


def settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` pairs without a recipe around them, the values in YAML.

    Raises:
        RecipeError: a line is not a pair, or a value is not YAML.
    """
    tree: dict[str, Any] = {}
    for override in overrides:
        set_in(tree, override)
    return tree
