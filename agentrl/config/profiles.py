"""Profiles: what of a recipe differs from machine to machine, as overlays (`--profile laptop | gpu | node | PATH`).

A profile is a part of a recipe: engine, model, adapters, batch, staleness. It is merged over the recipe's file, and
overrides are applied after it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from agentrl.config.origins import Loc, Origins, RecipeLayer, line_in, line_of, note, spelled_out
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


def apply_profile(
    tree: dict[str, Any], origins: Origins, name: str, file: Path | None = None, *, without: tuple[str, ...] = ()
) -> None:
    """Merges a profile into the tree of a recipe, key by key. Lists and values replace those of the recipe.

    A section whose other keys depend on one key (the engine on `use`, the model on `path` and `scratch`) is replaced
    as a whole if the profile changes that key.

    Args:
        origins: notes each key that the profile sets.
        file: the recipe's file, for messages on its `control`.
        without: sections of the profile that are left out.

    Raises:
        RecipeError: the profile does not exist, is not a mapping, or sets what belongs to the task; or it is `control`
            and the recipe has no such section.
    """
    if name == CONTROL:
        _take_out_the_method(tree, origins, file)
        return
    path = find_profile(name)
    profile = read_tree(path, "a profile")
    conditions = profile.pop(WHEN, None) or {}
    _check(profile, conditions, path)
    overlays = [profile, *(overlay for key, overlay in conditions.items() if _has(tree, key))]
    layer = RecipeLayer(path, f"profile {name}", path.resolve().parent)
    for overlay in overlays:
        merge(tree, overlay, origins, layer, without=without)


def _take_out_the_method(tree: dict[str, Any], origins: Origins, file: Path | None) -> None:
    """Merges the `control` section of a recipe over the rest of it."""
    control = tree.get(CONTROL)
    if not isinstance(control, Mapping) or not control:
        raise RecipeError(
            "the recipe has no section 'control': the keys that take its method out",
            place=str(file or f"--profile {CONTROL}"),
            remedy="name the recipe's file, with for example control: {credit: grpo}",
        )
    layer = RecipeLayer(file or CONTROL, f"profile {CONTROL}")
    merge(tree, control, origins, layer)
    tree["name"] = f"{tree.get('name', 'recipe')}-{CONTROL}"
    note(origins, ("name",), tree["name"], layer)


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


def merge(
    tree: dict[str, Any],
    overlay: Mapping[str, Any],
    origins: Origins,
    layer: RecipeLayer,
    *,
    without: Collection[str] = (),
) -> None:
    """Merges a mapping in place, and notes the origin of every key that it sets.

    An empty value takes out the entry of a mapping, for example a reward. For a key of a section it is the value null.

    Args:
        without: keys of the mapping that are left out.
    """
    kept = {key: value for key, value in overlay.items() if key not in without}
    for loc, value, line in _merged(tree, kept, overlay, (), None):
        note(origins, loc, value, layer, line)


def _merged(
    tree: dict[str, Any], overlay: Mapping[str, Any], lines: Any, above: Loc, line: int | None
) -> Iterator[tuple[Loc, Any, int | None]]:
    """Merges a mapping in place; yields path, value and line of every key that was set, sections before their keys.

    Args:
        lines: the mapping as it is written.
        line: of the section that it is.
    """
    for key, value in overlay.items():
        loc, at = (*above, str(key)), line_in(lines, key, line)
        old = spelled_out(loc, tree.get(key))
        new = value if value is None or _are_settings(value, old) else spelled_out(loc, value)
        section = section_at(Recipe, loc)
        if isinstance(new, Mapping) and isinstance(old, dict) and not _is_another(section, old, new):
            if tree.get(key) is None:
                yield loc, {}, at
            tree[key] = old
            yield from _merged(old, new, value, loc, at)
        elif value is None and key in tree and not _is_key(key, above):
            del tree[key]
            yield loc, value, at
        else:
            tree[key] = copy.deepcopy(new)
            yield loc, value, at


def _are_settings(new: Any, old: Any) -> bool:
    """Returns True if `{key: value}` is one setting of the plug-in that is there, and not another plug-in by name."""
    return isinstance(new, Mapping) and len(new) == 1 and isinstance(old, dict) and next(iter(new)) in old


def _is_key(key: str, above: tuple[str, ...]) -> bool:
    """Returns True if a section has this key; False for entries of a mapping and settings of a plug-in."""
    section = section_at(Recipe, above)
    return section is not None and key in section.model_fields


def _is_another(section: type[BaseModel] | None, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Returns True if a profile's section has the name of another thing than the recipe's."""
    named_by: tuple[str, ...] = getattr(section, "named_by", ())
    fields = section.model_fields if section is not None else {}
    return any(key in new and new[key] != old.get(key, fields[key].default) for key in named_by)
