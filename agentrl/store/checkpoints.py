"""The checkpoints of a run and their metadata. `training/checkpoint.py` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agentrl.types.errors import StoreError

STATE, TRAINER = "state.json", "trainer.pt"
REPLACED = ".old-"
POLICIES = "policies"
"""Folder of the auxiliary trained policies in a checkpoint."""

T = TypeVar("T")


def checkpoints(root: Path) -> list[Path]:
    """The complete checkpoints, oldest first (in the order of their names). If a kill interrupted the replacement of a
    checkpoint, the old one, which was moved aside, still counts."""
    found = {path.parent.name: path.parent for path in root.glob(f"*/{STATE}") if path.parent.name[0] != "."}
    for path in root.glob(f"{REPLACED}*/{STATE}"):
        found.setdefault(path.parent.name.removeprefix(REPLACED), path.parent)
    return [found[name] for name in sorted(found)]


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    whole = checkpoints(root)
    return whole[-1] if whole else None


def best(root: Path) -> Path | None:
    """The checkpoint that `train.keep.best` found in the last stage that has one, or None."""
    newest = latest(root)
    found = {} if newest is None else about(newest).get("best") or {}
    return next((root / name for name in reversed(found.values()) if (root / name / STATE).is_file()), None)


def about(folder: Path) -> dict[str, Any]:
    """The metadata of a checkpoint: its stage, its iteration, and the state of the loop.

    Raises:
        StoreError: the folder is not a checkpoint, or is damaged.
    """
    extra: dict[str, Any] = reading(folder, lambda: json.loads((folder / STATE).read_text()))
    return extra


def reading(folder: Path, read: Callable[[], T]) -> T:
    """Returns the result of `read`, and turns its exceptions into errors that name the checkpoint.

    Raises:
        StoreError: `read` raised.
    """
    try:
        return read()
    except Exception as error:
        raise StoreError(
            f"not a whole checkpoint: {type(error).__name__}: {error}",
            place=str(folder),
            remedy="remove the folder; training resumes from the checkpoint before it",
        ) from error
