"""`run.json`: the command, the recipe and the environment of a run."""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from agentrl.types.distribution import __version__
from agentrl.types.errors import StoreError

FORMAT = 2
"""Of a run folder. Runs of another format are refused: records are never converted."""

_VERSIONS_OF = ("numpy", "torch", "transformers", "vllm")


class OtherFormat(StoreError):
    """The run was written by another version of agentrl."""


def circumstances() -> dict[str, Any]:
    """Format, time, versions, command line and git commit."""
    versions = {"python": platform.python_version(), "agentrl": __version__}
    for name in _VERSIONS_OF:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    noted = {
        "format": FORMAT,
        "id": new_id(),
        "created_at": time.time(),
        "versions": versions,
        "argv": sys.argv,
    }
    if commit := _git("rev-parse", "HEAD"):
        noted["git"] = {"commit": commit, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    return noted


_RUNS = "name the folder that `agentrl train` or `rollout` wrote"


def run_folder(path: str | Path) -> Path:
    """The folder of a run.

    Raises:
        StoreError: it is not one.
    """
    path = Path(path)
    if not (path / "run.json").exists():
        what = "this is not a run directory (it has no run.json)" if path.exists() else "there is no such folder"
        inside = [str(each.parent) for each in sorted(path.glob("*/run.json")) or sorted(path.glob("*/*/run.json"))]
        remedy = f"name one of the runs in it: {', '.join(inside[:5])}" if inside else _RUNS
        raise StoreError(what, place=str(path), remedy=remedy)
    return path


def read_info(path: Path) -> dict[str, Any]:
    """The content of a run's `run.json`.

    Raises:
        StoreError: it is not JSON, or the run has another format.
    """
    try:
        info: dict[str, Any] = json.loads((path / "run.json").read_bytes())
    except ValueError as error:
        raise StoreError(f"not JSON: {error}", place=str(path / "run.json"), remedy="restore the file") from None
    if (found := info.get("format")) != FORMAT:
        raise OtherFormat(
            f"the run has format {found!r}, and this version of agentrl reads {FORMAT}",
            place=str(path),
            remedy=f"read it with agentrl {info.get('versions', {}).get('agentrl', 'of its time')}",
        )
    return info


def new_id() -> str:
    """A new unique id."""
    return secrets.token_hex(8)


def _git(*command: str) -> str:
    try:
        done = subprocess.run(["git", *command], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file in a readable layout."""
    replace(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Writes a file atomically; `durable`: also across a power cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with open(part, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(part, path)
