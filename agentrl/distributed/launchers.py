"""Launchers by the name that recipes give them, or by reference."""

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
    """Whether the recipe's launcher is one. Opens nothing.

    Raises:
        RecipeError: it is none, or a setting does not fit.
    """
    LAUNCHERS.chosen(recipe.scale, recipe.base)


async def open_launcher(recipe: Recipe, request: ResourceRequest) -> Launcher:
    """The recipe's launcher, with room for what is requested.

    Raises:
        RecipeError: as `check_launcher`.
        AgentRLError: there is no such room.
    """
    launcher: Launcher = LAUNCHERS.chosen(recipe.scale, recipe.base).make(scale=recipe.scale, request=request)
    await launcher.open()
    return launcher
