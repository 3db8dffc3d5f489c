"""Copies of files for a server that writes: each episode changes its own."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

PIECE = 1 << 20
"""Bytes that are copied before `stop` is looked at again."""


class CopyStopped(Exception):
    """The episode was closed while its files were copied."""


def copy_files(files: Mapping[str, str], folder: Path, stop: threading.Event) -> None:
    """Copies files and folders into a folder. All copies can be written.

    A link that leads outside of a copied folder becomes a copy of its target. A link that leads nowhere, a pipe, a
    socket or a device is left out.

    Args:
        files: the original's path by the name of the copy.
        stop: ends the copying.

    Raises:
        CopyStopped: `stop` is set.
        OSError: a file cannot be read.
    """
    for name, original in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(Path(original), folder / name, Path(os.path.realpath(original)), (), stop)


def _copy(original: Path, target: Path, root: Path, above: tuple[str, ...], stop: threading.Event) -> None:
    """Copies a file or a folder.

    Args:
        root: the copied folder, whose own links stay links.
        above: the folders that this one is in, so that links in a circle end.
    """
    real = os.path.realpath(original)
    if original.is_symlink() and above and Path(real).is_relative_to(root):
        target.symlink_to(os.path.relpath(real, os.path.realpath(original.parent)))
    elif original.is_dir() and real not in above:
        target.mkdir(mode=0o700, exist_ok=True)
        for each in sorted(original.iterdir()):
            _copy(each, target / each.name, root, (*above, real), stop)
    elif original.is_file():
        _copy_file(original, target, stop)


def _copy_file(original: Path, target: Path, stop: threading.Event) -> None:
    with original.open("rb") as reading, target.open("wb") as writing:
        while piece := reading.read(PIECE):
            if stop.is_set():
                raise CopyStopped
            writing.write(piece)
    target.chmod(stat.S_IMODE(original.stat().st_mode) | 0o600)
