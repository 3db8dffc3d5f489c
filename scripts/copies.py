"""Isolated copies of a commit, each with an environment of its own, so that every process of its tests runs its files.

An environment shares the packages of another by hard links. It differs in what names a place: the interpreter that
console scripts start, and where `agentrl` is imported from, also by processes whose environment variables were cleared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPEATABLE = ("-p", "no:cacheprovider", "--hypothesis-profile", "ci")
"""Arguments of pytest with which every run has the same examples."""
WORK = ROOT / "build" / "copies"
"""The default place of copies. Not below /tmp, which sandboxes hide."""


@dataclass(frozen=True)
class Copy:
    """A clone of a commit, with `.venv`."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    @property
    def packages(self) -> Path:
        return _packages(self.root / ".venv")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a test run: this tree and this environment come first; a missing program is no failure."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "CI"}
        return {
            **kept,
            "PYTHONPATH": str(self.root),
            "PATH": f"{self.python.parent}:{kept['PATH']}",
            "OMP_NUM_THREADS": "1",
        }


@contextmanager
def copies_of(checkout: Path, count: int, work: Path, venv: Path) -> Iterator[list[Copy]]:
    """Clones of the commit of a checkout in new folders below `work`, for a while; their environments are as `venv`."""
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=work))
    folder.chmod(0o755)  # users of sandboxes enter it
    try:
        yield [_copy(checkout, folder / str(k), venv.resolve()) for k in range(count)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(checkout: Path, folder: Path, venv: Path) -> Copy:
    commit = git(checkout, "rev-parse", "HEAD")
    common = Path(checkout, git(checkout, "rev-parse", "--git-common-dir"))
    git(checkout, "clone", "--quiet", "--shared", "--no-checkout", str(common), str(folder))
    git(folder, "checkout", "--quiet", "--detach", commit)
    made = Copy(folder.resolve())
    _environment(venv, made)
    return made


def git(checkout: Path, *arguments: str) -> str:
    """Returns the output of a git command."""
    done = subprocess.run(["git", "-C", checkout, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def room_of(path: str) -> str:
    """The room of a file of agentrl/: its first folder, or its own name."""
    return Path(path).parts[1].removesuffix(".py").replace("__init__", "agentrl")


def _packages(venv: Path) -> Path:
    (found,) = (venv / "lib").glob("python3.*/site-packages")
    return found


def _environment(venv: Path, made: Copy) -> None:
    """Makes `.venv`. Files are linked, folders are not: tests pack folders of packages, and sandboxes bind them."""
    ours = made.root / ".venv"
    shutil.copytree(venv, ours, symlinks=True, copy_function=_link)
    for entry in made.packages.glob("*agentrl*.pth"):
        entry.unlink()
        entry.write_text(f"{made.root}\n")
    for entry in (ours / "bin").iterdir():
        _move(entry, bytes(venv), bytes(ours))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


def _move(program: Path, venv: bytes, ours: bytes) -> None:
    """Lets a console script start the interpreter of its new place. The old file is linked, so it is not written to."""
    if program.is_symlink():
        return
    with program.open("rb") as file:
        text = file.read() if venv in file.readline() else None
    if text is not None:
        program.unlink()
        program.write_bytes(text.replace(venv, ours, 1))
        program.chmod(0o755)


def venv_here() -> Path:
    """The environment of this interpreter, whose packages copies share by default."""
    return Path(sys.prefix)
