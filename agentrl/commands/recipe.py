"""`agentrl recipe check`: output of the result."""

from __future__ import annotations

import json

from agentrl.api.recipe_check import CheckedRecipe


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
