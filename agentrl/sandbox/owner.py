"""Who made a sandbox: a process, by its id and the moment of its birth, so that a later process of that id is another.

Everything that a sandbox is made of carries the label of its owner. What carries a dead owner's label may be removed.
"""

from __future__ import annotations

import os
import secrets


def new_label() -> str:
    """A label for what this process makes: pid, birth in clock ticks since boot, a random part; joined by `-`."""
    pid = os.getpid()
    return f"{pid}-{_birth(pid)}-{secrets.token_hex(4)}"


def lives(label: str) -> bool:
    """Whether the owner that a label names still runs here. A text that is no label counts as alive: not ours."""
    pid, _, rest = label.partition("-")
    birth = rest.partition("-")[0]
    return not (pid.isdecimal() and birth.isdecimal()) or _birth(int(pid)) == int(birth)


def _birth(pid: int) -> int:
    """Start of a process, clock ticks since boot; -1 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1
