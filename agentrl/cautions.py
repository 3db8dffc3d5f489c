"""What is no error in a recipe, but would waste a training."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from agentrl.build import Parts
from agentrl.curriculum.curriculum import load_parts
from agentrl.errors import nearest


def cautions(parts: Parts) -> Iterator[str]:
    """What to tell before training begins, each with a remedy. Nothing for a recipe without `train`."""
    recipe = parts.recipe
    if recipe.train is None:
        return
    credit = recipe.credit.load(recipe.base)
    if credit.needs_members and recipe.train.group_size == 1:
        yield (
            f"{credit.estimator.name} compares the episodes of a group, and train.group_size is 1: nothing is learned\n"
            "  -> train.group_size=8, or credit that needs no group (reinforce_pp, or turn_gae with a critic)"
        )
    if credit.needs_members and recipe.sampling.temperature == 0:
        yield (
            "sampling.temperature is 0: all episodes of a group are the same, and nothing is learned\n"
            "  -> sampling.temperature=1"
        )
    for index, part in enumerate(load_parts(recipe.curriculum, recipe.base, recipe.scripts)):
        name = getattr(part.settings, "process", None)
        if isinstance(name, str) and name not in recipe.rewards and not _in_code(name, parts):
            yield (
                f"curriculum.{index}.process: {part.name} ranks by {name!r}, and neither a reward component nor a "
                f"tool's code has that name\n  -> {nearest(name, recipe.rewards, 'components')}; or let a tool give "
                f"it to a turn: ToolResult(..., rewards={{{name!r}: 0.5}})"
            )


def _in_code(name: str, parts: Parts) -> bool:
    """Whether the modules of the tools or the agent say the name somewhere; also if they cannot be read."""
    owners = [*(getattr(tool, "function", type(tool)) for tool in parts.make_tools()), type(parts.make_agent())]
    try:
        return any(name in inspect.getsource(inspect.getmodule(owner) or owner) for owner in owners)
    except (OSError, TypeError):
        return True
