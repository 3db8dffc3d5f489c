"""Traces that a batch may not leave: processes, control groups, containers, networks, files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_ENDING_S = 30.0  # what is ending already may take so long
_HELPER = b"agentrl.sandbox.helper"  # processes that work for the driver until it ends
_GROUPS = Path("/sys/fs/cgroup")


def left_behind(folder: Path) -> list[str]:
    """What is left of all batches of this process, which must adopt orphans.

    Args:
        folder: where this process makes its temporary files.
    """

    def look() -> Iterator[str]:
        yield from _descendants(os.getpid())
        yield from (f"control group {group}" for group in _groups_of(os.getpid()))
        yield from _containers_of(os.getpid())
        yield from (f"file {path}" for path in folder.iterdir())

    return _after_a_while(look)


def survivors_of(pid: int) -> list[str]:
    """What still runs in sandboxes of a process that died. (Folders of theirs are removed by the next driver.)"""

    def look() -> Iterator[str]:
        for group in _groups_of(pid):
            for path in group.rglob("cgroup.procs"):
                with suppress(OSError):
                    yield from (f"process {each} in {path.parent}" for each in path.read_text().split())

    return _after_a_while(look)


def _after_a_while(look: Callable[[], Iterator[str]]) -> list[str]:
    """What is found, once nothing of it is just ending."""
    until = time.monotonic() + _ENDING_S
    while (found := list(look())) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _groups_of(pid: int) -> Iterator[Path]:
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for hierarchy in (_GROUPS, *_GROUPS.iterdir()):
        inner = {
            hierarchy / path.lstrip("/") for _, names, path in own if hierarchy.name in names.split(",") or not names
        }
        for parent in {hierarchy, *inner}:
            yield from parent.glob(f"agentrl-{pid}-*")


def _containers_of(pid: int) -> Iterator[str]:
    if (host := os.environ.get("DOCKER_HOST")) is None or shutil.which("docker") is None:
        return
    for kind, words in (("container", ["ps", "-a"]), ("network", ["network", "ls"])):
        asked = ["docker", "-H", host, *words, "--format", '{{.Label "agentrl.owner"}} {{.ID}}']
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
        yield from (f"{kind} {line}" for line in told.splitlines() if line.startswith(f"{pid}-"))


def _descendants(pid: int) -> Iterator[str]:
    for child in _children(pid):
        with suppress(OSError):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            ended = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not ended and _HELPER not in command:
                yield f"process {child}: {command.replace(bytes(1), b' ').decode(errors='replace')[:100]}"
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found
