"""Removal of the containers, images and networks of dead owners."""

from __future__ import annotations

from typing import Any

from agentrl.sandbox.docker.engine import ContainerEngine
from agentrl.sandbox.owner import MACHINE, OWNER, is_alive, machine


def reap(engine: ContainerEngine, *, dry: bool = False, owner: str = "") -> list[str]:
    """Removes leftovers of dead owners from the engine; or those of `owner`, dead or alive.

    Objects of an owner in another PID namespace of the same boot (agentrl in a container) are left alone.

    Returns:
        Removed objects, or with `dry` those that would be, a line each.
    """

    def work(api: Any) -> list[str]:
        found = []
        query = {"filters": {"label": f"{OWNER}={owner}" if owner else OWNER}}
        left = (lambda thing: True) if owner else _is_dead
        for each in filter(left, api.containers(all=True, **query)):
            names = each["Names"] or [each["Id"][:12]]  # a container that is being removed may have lost its names
            found.append(f"container {names[0].lstrip('/')}")
            if not dry:
                _tolerant(engine, lambda id=each["Id"]: api.remove_container(id, force=True, v=True))
        for each in filter(left, api.images(all=False, **query)):
            found.append(f"image {each['Id'].removeprefix('sha256:')[:12]}")
            if not dry:
                _tolerant(engine, lambda id=each["Id"]: api.remove_image(id))
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
    """Removes an object. Two concurrent owners may reap the same: the second ignores that it is gone, or going."""
    try:
        remove()
    except Exception as error:
        if not engine.refused(error):
            raise
