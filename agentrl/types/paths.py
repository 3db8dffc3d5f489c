"""Finds data files that travel with the package: `tools/`, `recipes/`, `sandboxes/`."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path
from typing import Any

from agentrl.types.errors import AgentRLError, RecipeError

RELATIVE = ("./", "../")
"""Prefixes of paths that are relative to the file that names them."""

_PACKAGE = Path(__file__).resolve().parents[1]


def data_path(*parts: str) -> Path:
    """Returns the path of a data file or folder, for example `data_path("recipes", "quickstart")`.

    A wheel has them in `agentrl/_data`; a checkout next to the package.

    Raises:
        AgentRLError: it is in neither place, so the install is damaged.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (path := root.joinpath(*parts)).exists():
            return path
    raise AgentRLError(f"{'/'.join(parts)} is missing from this install of agentrl", remedy="reinstall agentrl")


def beside(value: str, base: Path) -> str:
    """Resolves a text of a file in `base`: absolute if it begins with `./` or `../`, else unchanged.

    Links are not followed: a virtual environment is recognised by the link to its interpreter.
    """
    return os.path.abspath(base / value) if value.startswith(RELATIVE) else value


def all_beside(value: Any, base: Path) -> Any:
    """Applies `beside` to all texts of settings, in lists and mappings too."""
    if isinstance(value, dict):
        return {name: all_beside(each, base) for name, each in value.items()}
    if isinstance(value, list):
        return [all_beside(each, base) for each in value]
    return beside(value, base) if isinstance(value, str) else value


def neighbours(missing: Path) -> str | None:
    """Returns what there is in place of a path that does not exist: the nearest folder above it, and its names.

    None: that is the working folder or the root.
    """
    folder = missing
    while not folder.is_dir() and folder.parent != folder:
        folder = folder.parent
    if folder == missing or not [part for part in folder.parts if part != folder.anchor]:
        return None
    names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    near = difflib.get_close_matches(missing.relative_to(folder).parts[0], names, 1)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}{folder} has: {', '.join(names[:_SHOWN]) or 'nothing'}{more}"


_SHOWN = 20  # names of a folder in a message


def check_program(name: str, place: str) -> None:
    """Checks that a program can be started on this machine.

    Raises:
        RecipeError: no program has this name, or the path is not an executable file.
    """
    if shutil.which(name) is None:
        here = "paths that begin with ./ or ../ are relative to the folder of the recipe" if os.sep in name else ""
        raise RecipeError(
            f"there is no program {name!r}",
            place=place,
            remedy=here or f"install {name}, or give its path: ./{name} lies in the folder of the recipe",
        )
