"""Which checkpoints a run has, and what each says about itself. `train/checkpoint.py` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agentrl.types.errors import StoreError

STATE = "state.json"
REPLACED = ".old-"

T = TypeVar("T")


def checkpoints(root: Path) -> list[Path]:
    """Whole checkpoints, the oldest first: their names sort so. One that a kill left moved aside, its successor not yet
    in place, still counts."""
    found = {path.parent.name: path.parent for path in root.glob(f"*/{STATE}") if path.parent.name[0] != "."}
    for path in root.glob(f"{REPLACED}*/{STATE}"):
        found.setdefault(path.parent.name.removeprefix(REPLACED), path.parent)
    return [found[name] for name in sorted(found)]


def latest(root: Path) -> Path | None:
    """The newest checkpoint, or None. Folders that are not whole are passed over."""
    whole = checkpoints(root)
    return whole[-1] if whole else None


def about(folder: Path) -> dict[str, Any]:
    """What a checkpoint says about itself: its stage, its iteration, and what the loop wants back.

    Raises:
        StoreError: the folder is no checkpoint, or is damaged.
    """
    extra: dict[str, Any] = reading(folder, lambda: json.loads((folder / STATE).read_text()))
    return extra


def reading(folder: Path, read: Callable[[], T]) -> T:
    """What `read` returns; whatever it raises is said of the checkpoint.

    Raises:
        StoreError: it failed.
    """
    try:
        return read()
    except Exception as error:
        raise StoreError(
            f"not a whole checkpoint: {type(error).__name__}: {error}",
            place=str(folder),
            remedy="remove the folder; training resumes from the checkpoint before it",
        ) from error
