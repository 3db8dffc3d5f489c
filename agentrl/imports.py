"""Finds user code that a recipe names: `pkg.module:Name` or `./task.py:Name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.errors import RecipeError, nearest


def is_reference(text: str) -> bool:
    """Whether `text` names user code rather than a built-in."""
    return ":" in text


def load_object(ref: str, base: Path) -> Any:
    """The object that `ref` names.

    Args:
        ref: `pkg.module:Name`, or `./file.py:Name` relative to `base`. `Name` may be dotted.
        base: folder of the recipe.

    Raises:
        RecipeError: no such file, module or name; or the module raises while it is imported.
    """
    target, _, name = ref.rpartition(":")
    if not target or not name:
        raise RecipeError(f"{ref!r} names no object", remedy="write pkg.module:Name or ./task.py:Name")
    module = _load_file(base / target, ref) if target.endswith(".py") else _load_module(target, ref)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n in vars(found) if not n.startswith("_")]
            raise RecipeError(f"{ref!r}: {target} has no {part!r}", remedy=nearest(part, names, "it has"))
        found = getattr(found, part)
    return found


def _load_file(path: Path, ref: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise RecipeError(f"{ref!r}: there is no file {path}", remedy="paths are relative to the recipe's folder")
    # One module object per file, however often it is named: a class must stay the same class.
    name = f"agentrl_user_{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:10]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RecipeError(f"{ref!r}: {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


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
    except Exception as error:
        raise RecipeError(f"{ref!r}: importing {target} failed: {type(error).__name__}: {error}") from error


def resolve_references(settings: dict[str, Any], base: Path) -> dict[str, Any]:
    """Settings with `./file.py:Name` replaced by the object and `./path` by the absolute path."""

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return [resolve(item) for item in value]
        if isinstance(value, dict):
            return {name: resolve(item) for name, item in value.items()}
        if isinstance(value, str) and value.startswith("./"):
            return load_object(value, base) if is_reference(value) else str((base / value).resolve())
        return value

    return {name: resolve(value) for name, value in settings.items()}
