"""Places by the name that recipes give them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentrl.scale.handle import LocalPlace, Place, Room
from agentrl.scale.process import ProcessPlace
from agentrl.scale.ray_cluster import RayPlace
from agentrl.scale.settings import ScaleSettings

PLACES: dict[str, Callable[[ScaleSettings, Room], Awaitable[Place]]] = {
    "local": LocalPlace.open,
    "process": ProcessPlace.open,
    "ray": RayPlace.open,
}
