"""The tools by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from agentrl.registry.registry import Registry
from agentrl.tools.base import FunctionTool, Tool


def _tool(found: Any) -> Callable[..., Tool] | None:
    """Makes instances: a Tool subclass does, and so does a `@tool` function once it is wrapped."""
    if hasattr(found, "__agentrl_tool__"):
        return partial(FunctionTool, found)
    return found if isinstance(found, type) and issubclass(found, Tool) and found is not Tool else None


TOOLS: Registry[Callable[..., Tool]] = Registry(
    kind="tool",
    key="tools",
    built_in={
        "shell": "agentrl.tools.shell:Shell",
        "python": "agentrl.tools.python:Python",
        "files": "agentrl.tools.files:Files",
        "search": "agentrl.tools.search:Search",
        "answer": "agentrl.tools.answer:Answer",
    },
    wanted="a Tool subclass or @tool function",
    accept=_tool,
    contracts=[Tool],
)
