"""Reads recipe files: YAML with line numbers, dotted overrides, and errors with place and remedy."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from agentrl.config.recipe import KINDS, Recipe, TrainSection
from agentrl.config.sections import Short, section_at
from agentrl.registry.installed import RECIPES, Offered, offered, offers
from agentrl.registry.settings import in_words
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.paths import beside, data_path


def find_recipe(name: str) -> Path:
    """The file of a recipe given as a YAML path, a folder with a `recipe.yaml`, or the name of a recipe that is shipped
    or that an installed package offers. `NAME/other.yaml` is another file beside the `recipe.yaml` of a name.

    Raises:
        RecipeError: none of these, which names the nearest known recipe; or the name is offered twice.
    """
    if (found := _file_of(Path(name))) is not None:
        return found
    shipped = data_path("recipes")
    found = _file_of(shipped / name) or _file_of(shipped / Path(name).name)
    first, _, rest = name.partition("/")
    own = offered(first, RECIPES, "recipe", None if found is None or rest else str(found))
    if own is not None:
        return recipe_file(own, rest)
    if found is not None:
        return found
    if Path(name).is_dir():
        raise RecipeError(f"the folder {name} has no recipe.yaml")
    names = [path.parent.name for folder in (Path(), shipped) for path in sorted(folder.glob("*/recipe.yaml"))]
    names += [each.name for each in offers(RECIPES)]
    raise RecipeError(f"there is no recipe {name!r}", remedy=nearest(name, names, "give a YAML file, or one of"))


def _file_of(path: Path) -> Path | None:
    """Returns the file itself, or the `recipe.yaml` of a folder; None: neither exists."""
    return next((each for each in (path, path / "recipe.yaml") if each.is_file()), None)


def recipe_file(own: Offered, rest: str = "") -> Path:
    """Returns the file of a recipe that an installed package offers. No code of the package runs.

    Args:
        rest: another file or folder beside its `recipe.yaml`.

    Raises:
        RecipeError: the package has no such file.
    """
    top, *parts = own.value.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # no name of a module, or a module without a spec
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (found := _file_of(Path(folder, *parts, rest))) is not None:
            return found
    file = f"{'/'.join([top, *parts])}/{rest or 'recipe.yaml'}"
    raise own.broken(f"it has no file {file}", remedy=f'pyproject.toml: {own.name} = "the.package.with.its.recipe"')


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Loads and checks a recipe.

    Args:
        overrides: `dotted.path=value`, the value in YAML; later ones win.

    Raises:
        RecipeError: with file:line, the path of the key, the found and the allowed values.
    """
    path = find_recipe(name)
    yaml = YAML(typ="rt")
    try:
        tree = yaml.load(path.read_text())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise RecipeError(f"not valid YAML: {error.problem or error.context}", place=f"{path}:{line}") from None
    if not isinstance(tree, dict):
        raise RecipeError(f"a recipe must be a mapping, found {type(tree).__name__}", place=f"{path}:1")
    given = {}
    for override in overrides:
        given[_apply(tree, override, Recipe)] = override
    return _validate(tree, path, given)


def recipe_of(sections: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """Checks a recipe that is given as a mapping, in a notebook for example. Its folder is the working folder.

    Raises:
        RecipeError: with the path of the key, the found and the allowed values.
    """
    tree = copy.deepcopy(dict(sections))
    given = {_apply(tree, override, Recipe): override for override in overrides}
    return _validate(tree, Path("recipe"), given)


def with_overrides(recipe: Recipe, overrides: Sequence[str], place: Path) -> Recipe:
    """A loaded recipe with overrides.

    Args:
        place: its file, for messages.

    Raises:
        RecipeError: as `load_recipe`.
    """
    tree = json.loads(recipe.model_dump_json())
    _let_stages_follow(tree, overrides)
    given = {_apply(tree, override, Recipe): override for override in overrides}
    other = _validate(tree, place, given)
    other._base = recipe.base
    return other


def _let_stages_follow(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    """Removes overridden keys of `train` from stages that have the recipe's value, so that they inherit them again."""
    paths = [override.partition("=")[0].split(".") for override in overrides]
    train = tree["train"] or TrainSection().model_dump(mode="json")
    followed = {key for key in train for path in paths if path[0] == "train" and path[1:2] in ([], [key])}
    for section in (stage[kind] for stage in tree["stages"] for kind in KINDS if stage[kind] is not None):
        own = section["train"]
        section["train"] = {key: own[key] for key in own if key not in followed or own[key] != train[key]}


def dump_recipe(recipe: Recipe) -> str:
    """The fully resolved recipe as YAML."""
    import io

    out = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(json.loads(recipe.model_dump_json()), out)
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


def _apply(tree: Any, override: str, root: type[BaseModel] | None = None) -> tuple[str, ...]:
    """Sets one value in the tree. `root`: the section of the tree, whose short forms are expanded on the way."""
    key, equals, text = override.partition("=")
    place = f"--set {override}"
    if not equals or not key:
        raise RecipeError(f"{override!r} is not an override", place=place, remedy="write path.to.key=value")
    path = tuple(key.split("."))
    at = tree
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
                at[slot] = at = _spelled_out(path[: depth + 1], found, root)
            except ValueError as error:
                raise RecipeError(f"{'.'.join(path[: depth + 1])}: {error}", place=place) from None
            continue
        try:
            at[slot] = YAML(typ="safe").load(text) if text else None
        except MarkedYAMLError as error:
            raise RecipeError(f"{text!r} is not a YAML value: {error.problem}", place=place) from None
    return path


def _spelled_out(path: tuple[str, ...], value: Any, root: type[BaseModel] | None) -> Any:
    """Expands a short form to its mapping, so that an override can change a key of it.

    Raises:
        ValueError: the value is not a short form of the section.
    """
    section = section_at(root, path) if root is not None else None
    if section is not None and issubclass(section, Short) and (found := section.spelled_out(value)) is not value:
        return CommentedMap(found)
    return CommentedMap() if value is None else value


def _validate(tree: Any, path: Path, given: dict[tuple[str, ...], str]) -> Recipe:
    plain = _plain(tree)
    for loc, value in _strangers(plain):
        raise RecipeError(
            f"{'.'.join(map(str, loc))}: {value!r} is not a value that a run can store",
            place=_place(tree, loc, path, given),
            remedy="write a finite number" if isinstance(value, float) else f"write it in quotes: '{value}'",
        )
    try:
        recipe = Recipe.model_validate(plain)
    except ValidationError as error:
        raise _explain(error, tree, path, given) from None
    recipe._base = path.resolve().parent
    return _with_places(recipe, given)


def _with_places(recipe: Recipe, given: Collection[tuple[str, ...]]) -> Recipe:
    """Resolves paths that begin with `./` or `../`: relative to the recipe's folder, or for overrides on the command
    line to the working folder."""

    def placed(value: Any, *loc: str) -> Any:
        said_here = any(loc[: len(each)] == each for each in given)
        return beside(value, Path.cwd() if said_here else recipe.base) if isinstance(value, str) else value

    if (model := recipe.model) is not None:
        found = {key: placed(getattr(model, key), "model", key) for key in ("path", "template")}
        recipe = recipe.with_model(model.model_copy(update=found))
    policies = {
        name: each.model_copy(update={"checkpoint": placed(each.checkpoint, "policies", name, "checkpoint")})
        for name, each in recipe.policies.items()
    }
    return recipe.with_sections(policies=policies) if policies else recipe


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


def _explain(error: ValidationError, tree: Any, path: Path, given: dict[tuple[str, ...], str]) -> RecipeError:
    """One RecipeError for all errors, one line each."""
    lines: list[str] = []
    first_place, first_remedy = "", None
    for found in error.errors():
        loc = tuple(found["loc"])
        if found["type"] == "unknown_key":
            loc = (*loc, found["ctx"]["key"])
        place = _place(tree, loc, path, given)
        message, remedy = _message(found, loc)
        dotted = ".".join(map(str, loc)) or "recipe"
        if not lines:
            first_place, first_remedy = place, remedy
            lines.append(f"{dotted}: {message}")
        else:
            lines.append(f"{place}: {dotted}: {message}" + (f" ({remedy})" if remedy else ""))
    return RecipeError("\n".join(lines), place=first_place, remedy=first_remedy)


def _message(found: Any, loc: tuple[Any, ...]) -> tuple[str, str | None]:
    kind = found["type"]
    if kind in ("extra_forbidden", "unknown_key"):
        allowed = _allowed(loc[:-1])
        return "unknown key", nearest(str(loc[-1]), allowed, "allowed here")
    if kind == "misplaced":
        return found["msg"], found["ctx"]["remedy"]
    if kind == "missing":
        return "is required and missing", None
    if kind in ("model_type", "model_attributes_type"):
        return f"must be a section of keys, found {found.get('input')!r}", f"its keys: {', '.join(_allowed(loc))}"
    if kind == "dict_type":
        return f"must be a mapping of names to settings, found {found.get('input')!r}", None
    return in_words(found), None


def _allowed(loc: tuple[Any, ...]) -> list[str]:
    """Returns the allowed keys of the section at `loc`."""
    section = section_at(Recipe, loc)
    return sorted(section.model_fields) if section is not None else []


def _place(tree: Any, loc: tuple[Any, ...], path: Path, given: dict[tuple[str, ...], str]) -> str:
    """`file:line` of the deepest part of `loc` that the file contains, or the override that set it."""
    dotted = tuple(map(str, loc))
    for key, text in given.items():
        if dotted[: len(key)] == key or key[: len(dotted)] == dotted:
            return f"--set {text}"
    line, at = 1, tree
    for part in loc:
        try:
            if isinstance(at, CommentedMap):
                line = at.lc.key(part)[0] + 1
            elif isinstance(at, CommentedSeq):
                line = at.lc.item(part)[0] + 1
            at = at[part]
        except (KeyError, IndexError, TypeError, AttributeError):
            break
    return f"{path}:{line}"
