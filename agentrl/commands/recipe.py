"""`agentrl recipe`: output of its commands."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from agentrl.api.recipe_check import CheckedRecipe
from agentrl.api.shipped import ShippedRecipe


def described(found: CheckedRecipe) -> str:
    """Formats the result for people."""
    rewards = [name + (f" ({', '.join(costs)})" if costs else "") for name, costs in found.rewards.items()]
    tools = ", ".join(found.tools) or "none before an episode opens"
    lines = {
        "tasks": str(found.tasks),
        "tools": tools + (" (in a sandbox)" if found.sandbox else ""),
        "rewards": ", ".join(rewards) or "none",
        "credit": f"{found.credit} {json.dumps(found.credit_settings, separators=(',', ':'))}",
        "model": found.model or "none (scripts only)",
        "scripts": ", ".join(found.scripts) or "none",
        "checked": found.certificate or "",
        "stages": ", ".join(f"{name} ({kind})" for name, kind in found.stages.items()),
    }
    told = [f"  {name:8} {line}" for name, line in lines.items() if line]
    return "\n".join([f"{found.name}: ok", *told, *(f"warning: {warning}" for warning in found.warnings)])


def listed(recipes: Iterable[ShippedRecipe]) -> Table:
    """A table of the built-in recipes. What is missing here has a colour, and the command that gets it."""
    table = Table("recipe", "what it trains", "size", "measured", "needs", box=None, padding=(0, 1, 1, 0))
    for recipe in recipes:
        lacks = recipe.lacks
        needs = Text("\n").join(
            Text(command, "yellow") if command in lacks else Text(", ".join(items))
            for command, items in recipe.needs.items()
        )
        measured = Text(recipe.measured or "not learned yet", "" if recipe.measured else "dim")
        table.add_row(Text(recipe.name), Text(recipe.trains or recipe.does), Text(recipe.size or ""), measured, needs)
    return table
