"""Where the files are that travel with the package but are no modules: `tools/`, `recipes/`, `sandboxes/`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from agentrl.types.errors import AgentRLError, RecipeError

RELATIVE = ("./", "../")
"""Beginnings of texts that are paths relative to the file that says them."""

_PACKAGE = Path(__file__).resolve().parents[1]


def data_path(*parts: str) -> Path:
    """The path of a data file or folder, for example `data_path("recipes", "quickstart")`.

    A wheel carries them in `agentrl/_data`; in a checkout they lie beside the package.

    Raises:
        AgentRLError: it is in neither place, which means a damaged install.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (path := root.joinpath(*parts)).exists():
            return path
    raise AgentRLError(f"{'/'.join(parts)} is missing from this install of agentrl", remedy="reinstall agentrl")


def beside(value: str, base: Path) -> str:
    """A text of a file in `base`: absolute if it begins with `./` or `../`, else as it is.

    Links are not followed: a virtual environment is known by the link to its interpreter.
    """
    return os.path.abspath(base / value) if value.startswith(RELATIVE) else value


def all_beside(value: Any, base: Path) -> Any:
    """Settings whose texts are as `beside` gives them, in lists and mappings too."""
    if isinstance(value, dict):
        return {name: all_beside(each, base) for name, each in value.items()}
    if isinstance(value, list):
        return [all_beside(each, base) for each in value]
    return beside(value, base) if isinstance(value, str) else value


def check_program(name: str, place: str) -> None:
    """Checks that a program can be started on this machine.

    Raises:
        RecipeError: there is none of this name, or no executable file at this path.
    """
    if shutil.which(name) is None:
        here = "paths that begin with ./ or ../ are relative to the folder of the recipe" if os.sep in name else ""
        raise RecipeError(
            f"there is no program {name!r}", place=place, remedy=here or f"install {name}, or give its path"
        )
