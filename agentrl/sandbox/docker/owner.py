"""Whose containers and networks are whose, and removing those of the dead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentrl.sandbox.docker.engine import ContainerEngine
from agentrl.sandbox.owner import is_alive

OWNER, MACHINE, RUN = "agentrl.owner", "agentrl.machine", "agentrl.run"


def labels(owner: str, run: str = "") -> dict[str, str]:
    """The labels of what an owner makes. `run`: for whom, for example an episode's id."""
    return {OWNER: owner, MACHINE: machine(), RUN: run}


def machine() -> str:
    """Where process ids mean the same: this boot of the kernel, this PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def reap(engine: ContainerEngine, *, dry: bool = False, owner: str = "") -> list[str]:
    """Removes what dead owners left in the engine; or what `owner` has there, who need not be dead.

    Nothing is judged whose owner lives in another PID namespace of the same boot (agentrl in a container).

    Returns:
        What was removed, or with `dry` would be, a line each.
    """

    def work(api: Any) -> list[str]:
        found = []
        query = {"filters": {"label": f"{OWNER}={owner}" if owner else OWNER}}
        left = (lambda thing: True) if owner else _is_dead
        for each in filter(left, api.containers(all=True, **query)):
            names = each["Names"] or [each["Id"][:12]]  # one that is being removed may have none any more
            found.append(f"container {names[0].lstrip('/')}")
            if not dry:
                _tolerant(engine, lambda id=each["Id"]: api.remove_container(id, force=True, v=True))
        for each in filter(left, api.networks(**query)):
            found.append(f"network {each['Name']}")
            if not dry:
                _tolerant(engine, lambda id=each["Id"]: api.remove_network(id))
        return found

    return engine.ask(work, 300)


def _is_dead(thing: dict[str, Any]) -> bool:
    marks = thing["Labels"]
    boot, _, space = marks.get(MACHINE, "").partition("/")
    own_boot, _, own_space = machine().partition("/")
    return boot != own_boot or (space == own_space and not is_alive(marks[OWNER]))


def _tolerant(engine: ContainerEngine, remove: Any) -> None:
    """Two that start at the same time may reap the same: who comes second is told that it is gone, or going."""
    try:
        remove()
    except Exception as error:
        if not engine.refused(error):
            raise
