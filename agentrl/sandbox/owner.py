"""Who made a sandbox: a process, by its id and the moment of its birth, so that a later process of that id is another.

Everything that a sandbox is made of carries the label of its owner. What carries a dead owner's label may be removed.
"""

from __future__ import annotations

import os
import secrets


def new_label() -> str:
    """A label for what this process makes.

    Returns:
        pid, birth in clock ticks since boot, PID namespace and a random part, joined by `-`.
    """
    pid = os.getpid()
    return f"{pid}-{_birth(pid)}-{_namespace()}-{secrets.token_hex(4)}"


def is_alive(label: str) -> bool:
    """Whether the owner that a label names still runs.

    True also where that cannot be told: the text is no label, or its owner lived in another PID namespace.
    """
    parts = label.split("-")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts[:3]) or int(parts[2]) != _namespace():
        return True
    return _birth(int(parts[0])) == int(parts[1])


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _birth(pid: int) -> int:
    """Start of a process, clock ticks since boot; -1 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1
