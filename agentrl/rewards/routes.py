"""Routes: which components score a task, in a recipe whose tasks have different verifiers."""

from __future__ import annotations

from collections.abc import Collection

from agentrl.config.rewards import RewardRoute
from agentrl.types.errors import RecipeError, TaskError, nearest
from agentrl.types.task import Task


def check_route(route: RewardRoute, names: Collection[str]) -> None:
    """Raises RecipeError if the route names a component that does not exist."""
    for name in route.always:
        if name not in names:
            raise RecipeError(
                f"there is no reward component {name!r}",
                place="reward_of.always",
                remedy=nearest(name, names, "components"),
            )


def components_of(task: Task, route: RewardRoute, names: Collection[str]) -> set[str]:
    """The names of the components that score a task.

    Args:
        names: of all components.

    Raises:
        TaskError: the field of the task is missing, or names something else than components.
    """
    found = task.data.get(route.field)
    named = found if isinstance(found, list) else [found]
    for name in named:
        if not isinstance(name, str) or name not in names:
            what = "is missing" if found is None else f"names {name!r}, which is no reward component"
            raise TaskError(
                f"data {route.field!r}, which says how the task is scored (reward_of), {what}",
                place=f"task {task.id}",
                remedy=nearest(str(name), names, "components") if name is not None else f"one of {', '.join(names)}",
            )
    return {*named, *route.always}
