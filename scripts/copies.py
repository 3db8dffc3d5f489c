"""Isolated copies of a commit, each with an environment of its own, so that every process of its tests runs its files.

An environment shares the packages of another by links. It differs in what names a place: the interpreter that console
scripts start, and where `agentrl` is imported from, also by processes whose environment variables were cleared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
        """The variables of a test run: this tree first, and no bytecode of a file that is about to change."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {
            **kept,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{self.python.parent}:{kept['PATH']}",
            "OMP_NUM_THREADS": "1",
            "CI": "1",
        }


def copy_of(checkout: Path, folder: Path, venv: Path) -> Copy:
    """Clones the commit of a checkout into `folder`, which is replaced, and makes its environment from `venv`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    commit = git(checkout, "rev-parse", "HEAD")
    common = Path(checkout, git(checkout, "rev-parse", "--git-common-dir"))
    git(checkout, "clone", "--quiet", "--shared", "--no-checkout", str(common), str(folder))
    git(folder, "checkout", "--quiet", "--detach", commit)
    made = Copy(folder.resolve())
    _environment(venv.resolve(), made)
    subprocess.run(
        [made.python, "-m", "compileall", "-q", made.root / "agentrl", made.root / "tests"],
        check=True,
        env={**made.environment, "PYTHONDONTWRITEBYTECODE": ""},
    )
    return made


def git(checkout: Path, *arguments: str) -> str:
    """What a git command prints."""
    done = subprocess.run(["git", "-C", checkout, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _packages(venv: Path) -> Path:
    (found,) = (venv / "lib").glob("python3.*/site-packages")
    return found


def _environment(venv: Path, made: Copy) -> None:
    ours = made.root / ".venv"
    site = ours / _packages(venv).relative_to(venv)
    site.mkdir(parents=True)
    for entry in _packages(venv).iterdir():
        if entry.name == "__pycache__":
            continue
        if entry.suffix == ".pth" and "agentrl" in entry.name:
            (site / entry.name).write_text(f"{made.root}\n")
        else:
            (site / entry.name).symlink_to(entry)
    for entry in venv.iterdir():
        if entry.name not in ("bin", "lib", "lib64"):
            (ours / entry.name).symlink_to(entry)
    (ours / "bin").mkdir()
    for entry in (venv / "bin").iterdir():
        _program(entry, ours / "bin" / entry.name, venv, ours)


def _program(entry: Path, target: Path, venv: Path, ours: Path) -> None:
    if entry.name.startswith("python"):
        target.symlink_to(entry.resolve())
        return
    with entry.open("rb") as file:
        first = file.readline()
    if first.startswith(b"#!") and bytes(venv) in first:
        target.write_bytes(entry.read_bytes().replace(bytes(venv), bytes(ours), 1))
        target.chmod(0o755)
    else:
        target.symlink_to(entry)


def venv_here() -> Path:
    """The environment of this interpreter, whose packages copies share by default."""
    return Path(sys.prefix)
