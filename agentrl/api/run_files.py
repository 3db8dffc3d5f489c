"""Hashes of the code and the data of a recipe, by which a run notices that they changed since it began."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from agentrl.config.tasks import ROWS
from agentrl.curriculum.tables import files_of, is_pattern
from agentrl.store.reader import RunReader
from agentrl.types.values import leaves

_MODELS = {"model", "policies", "engine"}
"""Sections that name models."""

_log = logging.getLogger(__name__)

Hashes = dict[str, dict[str, str]]
"""`code` and `data`, each a hash by file."""


def hashes_of(recipe: dict[str, Any], folder: Path) -> Hashes:
    """Returns the hashes of a recipe's Python files, and of the files that it names, for `run.json`.

    Args:
        recipe: resolved, as `run.json` holds it.
        folder: that of the recipe.
    """
    return {"code": code_beside(folder, recipe), "data": data_of(recipe, folder)}


def warn_of_changes(run: RunReader, files: Hashes) -> None:
    """Warns if a file has changed since the run began."""
    code, data = files["code"], files["data"]
    before = run.info.get("code")
    before = code if before is None else before
    changed = sorted(name for name in before.keys() | code.keys() if before.get(name) != code.get(name))
    told = run.info.get("data")
    told = data if told is None else told  # a stage that was added may name more
    changed += sorted(name for name in told.keys() & data.keys() if told[name] != data[name])
    if changed:
        _log.warning("%s changed since %s began: the run will mix episodes of both", ", ".join(changed), run.path)


def code_beside(folder: Path, recipe: dict[str, Any]) -> dict[str, str]:
    """A hash of every Python file in the recipe's folder, and in folders above it or beside it whose code it names.

    Args:
        recipe: resolved, as `run.json` holds it.

    Returns:
        By path relative to the folder.
    """
    texts = [text.partition(":")[0] for _, text in leaves(recipe) if isinstance(text, str) and text.startswith("../")]
    others = {Path(os.path.normpath(folder / text)).parent for text in texts if text.endswith(".py")}
    return {
        os.path.relpath(file, folder): hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        for each in (folder, *sorted(others - {folder}))
        for file in sorted(each.glob("*.py"))
    }


def data_of(recipe: dict[str, Any], folder: Path) -> dict[str, str]:
    """A hash of every file that a recipe names, by the name that it gives; a folder of rows counts as one file.

    Models are left out: they are large, and the run records their weights.

    Args:
        recipe: resolved, as `run.json` holds it.
        folder: that of the recipe.
    """
    found = {}
    for key, value in leaves(recipe):
        *sections, last = key.split(".")
        if not _MODELS & {*sections, last}:
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str) and (files := _files_at(os.path.join(folder, name), last in ROWS)):
                    found[name.removeprefix("./")] = _hash(files)
    return found


def _files_at(path: str, rows: bool) -> list[Path]:
    """Returns the file of this path, all files of a folder of rows, or the files of rows that fit a pattern. `os.path`
    accepts texts that are not paths.
    """
    if os.path.isfile(path):
        return [Path(path)]
    if rows and is_pattern(path) and not os.path.exists(path):
        return files_of(Path(os.path.abspath(path)))
    return sorted(file for file in Path(path).rglob("*") if file.is_file()) if rows and os.path.isdir(path) else []


def _hash(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
