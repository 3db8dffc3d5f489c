"""Places by the name that recipes give them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentrl.config.scale import ScaleSettings
from agentrl.distributed.handle import LocalPlace, Place, Room
from agentrl.distributed.process import ProcessPlace
from agentrl.distributed.ray_cluster import RayPlace

PLACES: dict[str, Callable[[ScaleSettings, Room], Awaitable[Place]]] = {
    "local": LocalPlace.open,
    "process": ProcessPlace.open,
    "ray": RayPlace.open,
}
