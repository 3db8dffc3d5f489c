"""Finds user code that a recipe names: `pkg.module:Name` or `./task.py:Name`."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.types.errors import RecipeError, described, is_user_code, nearest, place_of
from agentrl.types.modules import load_file
from agentrl.types.paths import RELATIVE, beside


def is_reference(text: str) -> bool:
    """Returns True if `text` names user code rather than a built-in."""
    return ":" in text


def load_object(ref: str, base: Path) -> Any:
    """Loads the object of a reference.

    Args:
        ref: `pkg.module:Name`, or `./file.py:Name` relative to `base`. `Name` may be dotted.
        base: folder of the recipe.

    Raises:
        RecipeError: the file, module or name does not exist, or the module raises on import.
    """
    target, name = _split(ref)
    found: Any = _load(target, ref, base)
    for part in name.split("."):
        if not hasattr(found, part):
            names = _defined_in(found) if isinstance(found, ModuleType) else vars(found)
            names = [name for name in names if not name.startswith("_")]
            raise RecipeError(f"{ref!r}: {target} has no {part!r}", remedy=nearest(part, names, "it has"))
        found = getattr(found, part)
    return found


def wrong_kind(ref: str, base: Path, place: str, wanted: str, fits: Callable[[Any], bool]) -> RecipeError:
    """Returns the error for an object of the wrong kind: its kind, its location, and objects that would fit.

    Args:
        place: the key of the recipe.
        wanted: the kind, in words: `an Agent subclass`.
        fits: returns True for an object of that kind.
    """
    target, _ = _split(ref)
    found, module = load_object(ref, base), _load(target, ref, base)
    names = [name for name, value in _defined_in(module).items() if fits(value)]
    return RecipeError(
        f"{ref} is {what_it_is(found)}, not {wanted}",
        place=place,
        remedy=f"of that kind {target} defines: {', '.join(names) or 'none'}",
    )


def what_it_is(found: Any) -> str:
    """Describes an object and its location in words."""
    if isinstance(found, type):
        bases = ", ".join(base.__name__ for base in found.__bases__ if base is not object)
        what = f"a class{f' of the kind {bases}' if bases else ''}"
    elif inspect.isroutine(found):
        what = "a function"
    else:
        return f"a {type(found).__name__}"
    try:
        return f"{what} ({inspect.getsourcefile(found)}:{inspect.getsourcelines(found)[1]})"
    except (TypeError, OSError):  # not written in Python
        return what


def _defined_in(module: ModuleType) -> dict[str, Any]:
    """Returns the names that a module defines itself, without its imports."""

    def imported(value: Any) -> bool:
        if not isinstance(value, type) and not inspect.isroutine(value):
            kind = type(value)
            return kind is ModuleType or kind.__name__[0] == "_" or kind.__module__ in ("typing", "__future__")
        return not f"{value.__module__}.".startswith(f"{module.__name__}.")

    return {name: value for name, value in vars(module).items() if not imported(value)}


def _split(ref: str) -> tuple[str, str]:
    target, _, name = ref.rpartition(":")
    if not target or not name:
        raise RecipeError(f"{ref!r} names no object", remedy="write pkg.module:Name or ./task.py:Name")
    return target, name


def _load(target: str, ref: str, base: Path) -> ModuleType:
    return _load_file(base / target, ref) if target.endswith(".py") else _load_module(target, ref)


def _load_file(path: Path, ref: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise RecipeError(f"{ref!r}: there is no file {path}", remedy="paths are relative to the recipe's folder")
    is_user_code(path.parent)
    # One module object per file, however often it is named: a class must stay the same class.
    name = f"agentrl_user_{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:10]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        return load_file(name, path, known=True)
    except (Exception, SystemExit) as error:  # a script that ends in main() without asking for __name__
        raise RecipeError(f"{ref!r}: {path} cannot be imported: {_described(error)}") from error


def _load_module(target: str, ref: str) -> ModuleType:
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name is not None and (target == error.name or target.startswith(error.name + ".")):
            raise RecipeError(
                f"{ref!r}: there is no module {error.name!r}",
                remedy="install it, or name a file: ./task.py:Name",
            ) from None
        raise RecipeError(f"{ref!r}: importing {target} failed: {error}") from error
    except (Exception, SystemExit) as error:  # a script that ends in main() without asking for __name__
        raise RecipeError(f"{ref!r}: importing {target} failed: {_described(error)}") from error


def _described(error: BaseException) -> str:
    where = "" if isinstance(error, SyntaxError) else place_of(error)  # that one's message has the line
    return described(type(error).__name__, str(error), where)


def resolve_references(settings: dict[str, Any], base: Path) -> dict[str, Any]:
    """Settings with `./file.py:Name` replaced by the object, and `./path` and `../path` by the absolute path."""

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return [resolve(item) for item in value]
        if isinstance(value, dict):
            return {name: resolve(item) for name, item in value.items()}
        if isinstance(value, str) and value.startswith(RELATIVE):
            return load_object(value, base) if is_reference(value) else beside(value, base)
        return value

    return {name: resolve(value) for name, value in settings.items()}
