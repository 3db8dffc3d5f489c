"""Registry of launchers: the values of `scale.use`."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.scale import ScaleSettings
from agentrl.distributed.handle import Launcher, ResourceRequest
from agentrl.registry.registry import Registry, any_class

LAUNCHERS: Registry[type] = Registry(
    kind="launcher",
    group="launchers",
    key="scale",
    built_in={
        "local": "agentrl.distributed.handle:LocalLauncher",
        "process": "agentrl.distributed.process:ProcessLauncher",
        "ray": "agentrl.distributed.ray_cluster:RayLauncher",
    },
    wanted="a class with the methods of agentrl.distributed.handle.Launcher",
    accept=any_class,
    contracts=[Launcher],
    filled=("scale", "request"),
)


def check_launcher(scale: ScaleSettings, base: Path) -> None:
    """Checks the launcher and its settings. Opens nothing.

    Args:
        base: folder of the recipe.

    Raises:
        RecipeError: the class is not a launcher, or a setting is wrong.
    """
    LAUNCHERS.chosen(scale, base)


async def open_launcher(scale: ScaleSettings, base: Path, request: ResourceRequest) -> Launcher:
    """Makes the launcher and reserves the requested resources.

    Raises:
        RecipeError: see `check_launcher`.
        AgentRLError: the resources are not available.
    """
    launcher: Launcher = LAUNCHERS.chosen(scale, base).make(scale=scale, request=request)
    await launcher.open()
    return launcher
