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
from agentrl.config.layers import RecipeTree, line_of, set_in
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
    treated = load_recipe(given, overrides) if profile == CONTROL and isinstance(given, str) else None
    tree, base = _tree_of(given, place)
    control = tree.values.get(CONTROL)
    place_of_control = f"{tree.files[0]}:{(line_of(control, next(iter(control or ()), None)) or 0) + 1}"
    before = copy.deepcopy(tree.values) if isinstance(given, Recipe) else None
    overlay(tree, profile, overrides, without=without)
    if before is not None:
        _let_stages_follow(tree, before)
    came_with = given.profile if isinstance(given, Recipe) else None
    recipe = validated(tree, profile or came_with, base)
    if treated is not None and recipe.model_dump(exclude={"name"}) == treated.model_dump(exclude={"name"}):
        raise RecipeError(
            "'control' changes nothing: the recipe has its values already",
            place=place_of_control,
            remedy="name the keys that make the method, with the values that they have without it",
        )
    return recipe


def _tree_of(given: str | Mapping[str, Any] | Recipe, place: Path | None = None) -> tuple[RecipeTree, Path]:
    """Returns the tree of a recipe without profile and overrides, and the recipe's folder."""
    if isinstance(given, Recipe):
        return RecipeTree(json.loads(given.model_dump_json()), (place or given.base, *given.bases)), given.base
    if isinstance(given, Mapping):
        return on_base(copy.deepcopy(dict(given)), Path("recipe")), Path.cwd()
    file = find_recipe(given)
    return read_recipe(file), file.resolve().parent


def _let_stages_follow(tree: RecipeTree, before: dict[str, Any]) -> None:
    """Removes keys of `train` that a layer changed from stages that had the recipe's value, so that they inherit them
    again. A key that a layer set in the stage itself stays.

    Args:
        before: the values of the tree before the layer.
    """
    train = before["train"] or TrainSection().model_dump(mode="json")
    changed = {key for key in train for loc in tree.origins if loc[:1] == ("train",) and loc[1:2] in ((), (key,))}
    for index, stage in enumerate(before["stages"]):
        kind = next(kind for kind in KINDS if stage[kind] is not None)
        here = ("stages", str(index), kind, "train")
        if any(loc == here[: len(loc)] for loc in tree.origins):
            continue  # the layer brings the stage's whole section
        now = tree.values["stages"][index][kind]["train"]
        for key in changed:
            if stage[kind]["train"].get(key) == train[key] and not any(loc[:5] == (*here, key) for loc in tree.origins):
                now.pop(key, None)


def explain_recipe(name: str, overrides: Sequence[str] = (), profile: str | None = None) -> str:
    """The fully resolved recipe as YAML. A comment behind each key says where it was set; none: it is a default.

    Raises:
        RecipeError: as `load_recipe`.
    """
    tree, base = _tree_of(name)
    overlay(tree, profile, overrides)
    recipe, names = validated(tree, profile, base), tree.labels()

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
