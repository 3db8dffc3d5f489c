"""Names in the code of a recipe's tools and agent."""

from __future__ import annotations

import inspect

from agentrl.rollouts.builder import Parts


def in_code(name: str, parts: Parts) -> bool:
    """Returns True if the modules of the tools or the agent contain the name, or cannot be read."""
    owners = [*(getattr(tool, "function", type(tool)) for tool in parts.make_tools()), type(parts.make_agent())]
    try:
        return any(name in inspect.getsource(inspect.getmodule(owner) or owner) for owner in owners)
    except (OSError, TypeError):
        return True
