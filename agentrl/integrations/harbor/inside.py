"""Path checks of task folders, which are untrusted: nothing outside of them is read through paths or links."""

from __future__ import annotations

from pathlib import Path

from agentrl.types.errors import TaskError

FILES = (
    "task.toml", "instruction.md", "environment", "environment/Dockerfile",
    "environment/docker-compose.yaml", "environment/docker-compose.yml", "tests", "tests/test.sh", "solution",
    "solution/solve.sh",
)  # fmt: skip
"""Files of a task folder opened on this machine. Links in its folders are copied to a sandbox as links."""


def require_own_files(folder: Path) -> None:
    """Checks that the files of a task folder lie in it.

    Raises:
        TaskError: a file is a link that leads out of the folder, or neither file nor folder.
    """
    for name in FILES:
        path = folder / name
        if path.is_symlink() or path.exists():
            require_inside(folder, path)


def require_inside(folder: Path, path: Path, place: str | None = None) -> None:
    """Checks that a path of a folder leads to a file or folder in it.

    Args:
        place: place for the error; default: the folder.

    Raises:
        TaskError: the path leads elsewhere, or to a device, pipe or socket.
    """
    at, place = path.resolve(), place or str(folder)
    if not at.is_relative_to(folder.resolve()):
        raise TaskError(f"{path} leads out of {folder}, to {at}", place=place, remedy="put the file itself there")
    if at.exists() and not (at.is_file() or at.is_dir()):
        raise TaskError(f"{path} is neither file nor folder", place=place, remedy="remove it")
