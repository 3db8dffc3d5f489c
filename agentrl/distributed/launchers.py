"""Places by the name that recipes give them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentrl.config.scale import ScaleSettings
from agentrl.distributed.handle import Launcher, LocalLauncher, ResourceRequest
from agentrl.distributed.process import ProcessLauncher
from agentrl.distributed.ray_cluster import RayLauncher

LAUNCHERS: dict[str, Callable[[ScaleSettings, ResourceRequest], Awaitable[Launcher]]] = {
    "local": LocalLauncher.open,
    "process": ProcessLauncher.open,
    "ray": RayLauncher.open,
}
