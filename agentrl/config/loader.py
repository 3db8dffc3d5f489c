"""Reads recipe files: YAML with line numbers, dotted overrides, and errors with place and remedy."""

from __future__ import annotations

import copy
import difflib
import io
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from agentrl.config.bases import Merged, on_base, read_recipe
from agentrl.config.files import find_recipe
from agentrl.config.origins import (
    Origins,
    RecipeLayer,
    labels,
    line_of,
    note,
    origin_of,
    place_in,
    relative_to,
    spelled_out,
)
from agentrl.config.peers import told_of_peer
from agentrl.config.profiles import CONTROL, apply_profile
from agentrl.config.recipe import KINDS, Recipe, TrainSection
from agentrl.config.sections import section_at
from agentrl.registry.settings import in_words
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.forms import united
from agentrl.types.paths import beside


def load_recipe(name: str, overrides: Sequence[str] = (), profile: str | None = None) -> Recipe:
    """Loads and checks a recipe.

    Args:
        overrides: `dotted.path=value`, the value in YAML; later ones win.
        profile: a shipped profile (laptop, gpu, node) or a YAML file, merged over the recipe before the overrides.

    Raises:
        RecipeError: with file:line, the path of the key, the found and the allowed values.
    """
    path = find_recipe(name)
    found = read_recipe(path)
    control = found.tree.get(CONTROL)
    _overlay(found.tree, found.origins, overrides, profile, file=path)
    recipe = _validate(found, profile, path.resolve().parent)
    if profile == CONTROL:
        line = line_of(control, next(iter(control or {}))) or 0
        _differs(recipe, load_recipe(name, overrides), f"{path}:{line + 1}")
    return recipe


def _differs(control: Recipe, treated: Recipe, place: str) -> None:
    """Raises RecipeError if a control has all values of the recipe with its method."""
    if control.model_dump(exclude={"name"}) == treated.model_dump(exclude={"name"}):
        raise RecipeError(
            "'control' changes nothing: the recipe has its values already",
            place=place,
            remedy="name the keys that make the method, with the values that they have without it",
        )


def recipe_of(sections: Mapping[str, Any], overrides: Sequence[str] = (), profile: str | None = None) -> Recipe:
    """Checks a recipe that is given as a mapping, in a notebook for example. Its folder is the working folder.

    Raises:
        RecipeError: with the path of the key, the found and the allowed values.
    """
    found = on_base(copy.deepcopy(dict(sections)), Path("recipe"))
    _overlay(found.tree, found.origins, overrides, profile)
    return _validate(found, profile, Path.cwd())


def with_overrides(
    recipe: Recipe,
    overrides: Sequence[str],
    place: Path,
    profile: str | None = None,
    *,
    without: tuple[str, ...] = (),
) -> Recipe:
    """A loaded recipe with a profile and overrides.

    Args:
        place: its file, for messages.
        without: sections of the profile that are left out.

    Raises:
        RecipeError: as `load_recipe`.
    """
    tree, origins = json.loads(recipe.model_dump_json()), Origins()
    _overlay(
        copy.deepcopy(tree), origins, overrides, profile, without=without
    )  # a copy to throw away: which keys change
    _let_stages_follow(tree, origins)
    _overlay(tree, origins, overrides, profile, without=without)
    return _validate(Merged(tree, (place, *recipe.bases), origins), profile or recipe.profile, recipe.base)


def _overlay(
    tree: Any,
    origins: Origins,
    overrides: Sequence[str],
    profile: str | None,
    *,
    file: Path | None = None,
    without: tuple[str, ...] = (),
) -> None:
    """Applies a profile and then overrides to the tree of a recipe, and notes the origins of the keys that they set.

    Args:
        file: the recipe's file, for messages on its `control`.
    """
    if profile is not None:
        apply_profile(tree, origins, profile, file, without=without)
    for override in overrides:
        key, value = _apply(tree, override, Recipe)
        note(origins, key, value, RecipeLayer(f"--set {override}", "--set", Path.cwd()))


def _let_stages_follow(tree: dict[str, Any], changed: Collection[tuple[str, ...]]) -> None:
    """Removes changed keys of `train` from stages that have the recipe's value, so that they inherit them again."""
    train = tree["train"] or TrainSection().model_dump(mode="json")
    followed = {key for key in train for path in changed if path[0] == "train" and path[1:2] in ((), (key,))}
    for section in (stage[kind] for stage in tree["stages"] for kind in KINDS if stage[kind] is not None):
        own = section["train"]
        section["train"] = {key: own[key] for key in own if key not in followed or own[key] != train[key]}


def explain_recipe(name: str, overrides: Sequence[str] = (), profile: str | None = None) -> str:
    """The fully resolved recipe as YAML. A comment behind each key says where it was set; none: it is a default.

    Raises:
        RecipeError: as `load_recipe`.
    """
    path = find_recipe(name)
    found = read_recipe(path)
    _overlay(found.tree, found.origins, overrides, profile, file=path)
    recipe = _validate(found, profile, path.resolve().parent)
    names = labels(found.origins)

    def commented(value: Any, loc: tuple[str, ...] = ()) -> Any:
        """The value as a YAML node with the comments behind its leaves."""
        if not isinstance(value, dict | list) or not value:
            return value
        node: Any = CommentedMap() if isinstance(value, dict) else CommentedSeq()
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            below = (*loc, str(key))
            inner = commented(item, below)
            node.append(inner) if isinstance(node, CommentedSeq) else node.update({key: inner})
            if inner is item and (said := origin_of(found.origins, below)) is not None:
                line = "" if said.line is None or said.layer.name is not None else f":{said.line + 1}"
                node.yaml_add_eol_comment(names[said.layer] + line, key, column=0)
        return node

    return _as_yaml(commented(json.loads(recipe.model_dump_json())))


def _as_yaml(tree: Any) -> str:
    out, yaml = io.StringIO(), YAML()
    yaml.default_flow_style, yaml.width = False, 1 << 16  # a comment ends a line
    yaml.dump(tree, out)
    return out.getvalue()


def settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` pairs without a recipe around them, the values in YAML.

    Raises:
        RecipeError: a line is not a pair, or a value is not YAML.
    """
    tree: dict[str, Any] = {}
    for override in overrides:
        _apply(tree, override)
    return tree


def _apply(tree: Any, override: str, root: type[BaseModel] | None = None) -> tuple[tuple[str, ...], Any]:
    """Sets one value in the tree; returns its key and the value. `root`: the section of the tree, whose short forms are
    expanded on the way."""
    key, equals, text = override.partition("=")
    place = f"--set {override}"
    if not equals or not key:
        raise RecipeError(f"{override!r} is not an override", place=place, remedy="write path.to.key=value")
    path, at = tuple(key.split(".")), tree
    try:
        value = YAML(typ="safe").load(text) if text else None
    except MarkedYAMLError as error:
        raise RecipeError(f"{text!r} is not a YAML value: {error.problem}", place=place) from None
    for depth, part in enumerate(path):
        where = ".".join(path[:depth])
        if isinstance(at, list):
            if not part.isdigit() or int(part) >= len(at):
                raise RecipeError(f"{where} is a list of {len(at)}; {part!r} is not an index", place=place)
        elif not isinstance(at, dict):
            raise RecipeError(f"{where} is a value and has no {part!r}", place=place)
        slot: Any = int(part) if isinstance(at, list) else part
        if depth < len(path) - 1:
            found = at.get(slot) if isinstance(at, dict) else at[slot]
            try:
                at[slot] = at = spelled_out(path[: depth + 1], found, root)
            except ValueError as error:
                raise RecipeError(f"{'.'.join(path[: depth + 1])}: {error}", place=place) from None
            continue
        at[slot] = value
    return path, value


def _validate(found: Merged, profile: str | None, base: Path) -> Recipe:
    found.tree.pop(CONTROL, None)
    plain = _plain(found.tree)
    for loc, value in _strangers(plain):
        raise RecipeError(
            f"{'.'.join(map(str, loc))}: {value!r} is not a value that a run can store",
            place=place_in(found.origins, tuple(map(str, loc)), "", found.files[0]),
            remedy="write a finite number" if isinstance(value, float) else f"write it in quotes: '{value}'",
        )
    try:
        recipe = Recipe.model_validate(plain)
    except ValidationError as error:
        raise _explain(error, plain, found) from None
    recipe._base, recipe._bases = base, found.files[1:]
    recipe._profile = profile
    recipe._places = {".".join(loc): origin.place for loc, origin in found.origins.items()}
    return _with_places(recipe, found.origins)


def _with_places(recipe: Recipe, origins: Origins) -> Recipe:
    """Resolves paths that begin with `./` or `../`: relative to the recipe's folder, of a profile to the profile's, and
    for overrides on the command line to the working folder."""

    def placed(value: Any, *loc: str) -> Any:
        return beside(value, relative_to(origins, loc) or recipe.base) if isinstance(value, str) else value

    if (model := recipe.model) is not None:
        found = {key: placed(getattr(model, key), "model", key) for key in ("path", "template")}
        recipe = recipe.with_model(model.model_copy(update=found))
    policies = {
        name: each.model_copy(update={"checkpoint": placed(each.checkpoint, "policies", name, "checkpoint")})
        for name, each in recipe.policies.items()
    }
    sections: dict[str, Any] = {"policies": policies} if policies else {}
    if recipe.train is not None and (teacher := recipe.train.teacher) is not None:
        path = placed(teacher.path, "train", "teacher", "path")
        taught = {"teacher": teacher.model_copy(update={"path": path})}
        sections["train"] = recipe.train.model_copy(update=taught)
        sections["stages"] = [
            each.with_train(each.rl.train.model_copy(update=taught))
            if each.rl is not None and each.rl.train.teacher == teacher
            else each
            for each in recipe.stages
        ]
    return recipe.with_sections(**sections) if sections else recipe


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


def _strangers(node: Any, loc: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Values that YAML has and JSON does not (infinities, dates, sets), with their locations. A run could not store and
    restore them."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _strangers(value, (*loc, key))
    elif (isinstance(node, float) and not math.isfinite(node)) or not isinstance(node, str | int | float | None):
        yield loc, node


def _explain(error: ValidationError, plain: Any, merged: Merged) -> RecipeError:
    """One RecipeError for all errors, each with its place and its remedy."""
    told: list[tuple[str, str, str | None]] = []
    for found in united(error.errors(), plain):
        loc = tuple(found["loc"])
        if found["type"] == "unknown_key":
            loc = (*loc, found["ctx"]["key"])
        message, remedy = _message(found, loc)
        place = place_in(merged.origins, tuple(map(str, loc)), message, merged.files[0])
        told.append((place, f"{'.'.join(map(str, loc)) or 'recipe'}: {message}", remedy))
    (place, message, remedy), *others = told
    if not others:
        return RecipeError(message, place=place, remedy=remedy)
    lines = [f"{message}{_fix(remedy)}", *(f"{at}: {what}{_fix(fix)}" for at, what, fix in others)]
    return RecipeError("\n".join(lines), place=place)


def _fix(remedy: str | None) -> str:
    """The remedy below an error, as `AgentRLError` prints it."""
    return "" if remedy is None else f"\n  -> {remedy}"


def _message(found: Any, loc: tuple[Any, ...]) -> tuple[str, str | None]:
    kind = found["type"]
    if kind in ("extra_forbidden", "unknown_key"):
        allowed = _allowed(loc[:-1])
        told = told_of_peer(str(loc[-1]), ".".join(map(str, loc[:-1])))
        if told is not None and not _is_a_slip(str(loc[-1]), allowed):
            return "unknown key", f"{told}; allowed here: {', '.join(allowed) or 'none'}"
        return "unknown key", nearest(str(loc[-1]), allowed, "allowed here")
    if kind == "misplaced":
        return found["msg"], found["ctx"]["remedy"]
    if kind == "missing":
        return "is required and missing", None
    if kind in ("model_type", "model_attributes_type"):
        return f"must be a section of keys, found {found.get('input')!r}", f"its keys: {', '.join(_allowed(loc))}"
    if kind == "dict_type":
        return f"must be a mapping of names to settings, found {found.get('input')!r}", _named(loc, found.get("input"))
    if kind == "forms" and (keys := _allowed(loc)):
        return in_words(found), f"keys of the section: {', '.join(keys)}"
    return in_words(found), None


def _is_a_slip(word: str, allowed: Collection[str]) -> bool:
    """Returns whether an allowed key differs from the word in a letter or two."""
    return bool(difflib.get_close_matches(word, allowed, 1, 0.85))


def _named(loc: tuple[Any, ...], found: Any) -> str:
    """Returns the mapping that a list of names, or one name, was meant to be."""
    listed = found if isinstance(found, list) else [found]
    if not listed or not all(isinstance(each, str) for each in listed):
        return "NAME: SETTINGS"
    settings = ", ".join(f"{_NAME.sub('_', each.rpartition(':')[2])}: {each}" for each in listed[:3] if each)
    return f"give each a name: {loc[-1]}: {{{settings}}}"


_NAME = re.compile(r"\W+")


def _allowed(loc: tuple[Any, ...]) -> list[str]:
    """Returns the allowed keys of the section at `loc`."""
    section = section_at(Recipe, loc)
    return sorted(section.model_fields) if section is not None else []
