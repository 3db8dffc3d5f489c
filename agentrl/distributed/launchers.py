"""Registry of launchers: the values of `scale.use`."""

from __future__ import annotations

from agentrl.config.recipe import Recipe
from agentrl.distributed.handle import Launcher, ResourceRequest
from agentrl.registry.registry import Registry, any_class

LAUNCHERS: Registry[type] = Registry(
    kind="launcher",
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


def check_launcher(recipe: Recipe) -> None:
    """Checks the recipe's launcher and its settings. Opens nothing.

    Raises:
        RecipeError: the class is not a launcher, or a setting is wrong.
    """
    LAUNCHERS.chosen(recipe.scale, recipe.base)


async def open_launcher(recipe: Recipe, request: ResourceRequest) -> Launcher:
    """Makes the recipe's launcher and reserves the requested resources.

    Raises:
        RecipeError: see `check_launcher`.
        AgentRLError: the resources are not available.
    """
    launcher: Launcher = LAUNCHERS.chosen(recipe.scale, recipe.base).make(scale=recipe.scale, request=request)
    await launcher.open()
    return launcher
