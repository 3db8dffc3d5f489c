"""Owner of a sandbox: a process, identified by its id and start time, so that a reused id is another owner.

All parts of a sandbox carry the label of its owner. Parts with a dead owner's label may be removed.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

OWNER, MACHINE, RUN = "agentrl.owner", "agentrl.machine", "agentrl.run"
"""Keys of the labels of containers, images and networks."""


def new_label() -> str:
    """Creates a label for the objects of this process.

    Returns:
        pid, birth in clock ticks since boot, PID namespace and a random part, joined by `-`.
    """
    pid = os.getpid()
    return f"{pid}-{_birth(pid)}-{_namespace()}-{secrets.token_hex(4)}"


def is_alive(label: str) -> bool:
    """Returns True if the owner that a label names still runs.

    Also True if that is unknown: the text is not a label, or its owner lived in another PID namespace.
    """
    parts = label.split("-")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts[:3]) or int(parts[2]) != _namespace():
        return True
    return _birth(int(parts[0])) == int(parts[1])


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _birth(pid: int) -> int:
    """Returns the start of a process in clock ticks since boot; -1 if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1


def labels(owner: str, run: str = "") -> dict[str, str]:
    """Returns the labels of an owner's objects. `run`: their purpose, for example an episode's id."""
    return {OWNER: owner, MACHINE: machine(), RUN: run}


def machine() -> str:
    """Returns an id of the scope of process ids: this boot of the kernel, this PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
