"""The packages that are broken: their code and their own tests, as texts by path, read from their sdists."""

from __future__ import annotations

import functools
import os
import tarfile
from pathlib import Path, PurePosixPath

from agentrl.types.errors import RecipeError

# Name: version; the folder that imports start from; the code; the tests.
PACKAGES = {
    "inflection": ("0.5.1", "", "inflection", "test_inflection.py"),
    "isodate": ("0.7.2", "src", "isodate", "tests"),
    "toolz": ("1.1.0", "", "toolz", "toolz/tests"),
    "tabulate": ("0.10.0", "", "tabulate", "test"),
    "sqlparse": ("0.6.1", "", "sqlparse", "tests"),
    "boltons": ("26.2.0", "", "boltons", "tests"),
}
COMMAND = f"pip download --no-deps --no-binary {','.join(PACKAGES)} -d ~/.cache/agentrl/swe-inject " + " ".join(
    f"{name}=={version}" for name, (version, *_) in PACKAGES.items()
)


def folder() -> Path:
    """Where the sdists lie: `$AGENTRL_CACHE/swe-inject`, by default `~/.cache/agentrl/swe-inject`."""
    return Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl") / "swe-inject"


@functools.cache
def code_of(package: str) -> dict[str, str]:
    """The Python files of a package without its tests, by path from the folder that imports start from.

    Raises:
        RecipeError: the sdist is not there.
    """
    _, root, code, tests = PACKAGES[package]
    files = {path.removeprefix(f"{root}/"): content for path, content in _sdist(package).items()}
    return {
        path: content.decode()
        for path, content in files.items()
        if _below(path, code) and path.endswith(".py") and not _below(path, tests)
    }


@functools.cache
def tests_of(package: str) -> dict[str, bytes]:
    """The package's own tests, and the data that they read, by path."""
    tests = PACKAGES[package][3]
    return {path: content for path, content in _sdist(package).items() if _below(path, tests)}


@functools.cache
def _sdist(package: str) -> dict[str, bytes]:
    """The files of an sdist by path, without its outer folder. Symbolic links are left out."""
    path = folder() / f"{package}-{PACKAGES[package][0]}.tar.gz"
    if not path.is_file():
        raise RecipeError(f"there is no {path}", place="swe-inject", remedy=COMMAND)
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                found["/".join(PurePosixPath(member.name).parts[1:])] = content.read()
    return found


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
