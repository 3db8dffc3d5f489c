"""Registry of tools by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agentrl.registry.registry import Registry
from agentrl.tools.base import Environment, FunctionTool, Tool
from agentrl.tools.methods import methods_of


def _tool(found: Any) -> Callable[..., Tool] | None:
    """Returns a factory of instances: a Tool subclass, or a wrapper of a `@tool` function or schema tool."""
    if hasattr(found, "__agentrl_tool__"):
        return partial(FunctionTool, found)
    return found if isinstance(found, type) and issubclass(found, Tool) and found not in (Tool, Environment) else None


def _about(made: Callable[..., Tool]) -> Mapping[str, Any]:
    """Returns the tool definitions shown to the model; a built-in tool needs no settings for this."""
    functions = methods_of(object.__new__(made)) if isinstance(made, type) and issubclass(made, Tool) else ()
    return {"functions": [method.definition() for method in functions]}


TOOLS: Registry[Callable[..., Tool]] = Registry(
    kind="tool",
    group="tools",
    key="tools",
    built_in={
        "shell": "agentrl.tools.builtin.shell:Shell",
        "python": "agentrl.tools.builtin.python:Python",
        "compile": "agentrl.tools.builtin.compile:Compile",
        "files": "agentrl.tools.builtin.files:Files",
        "apply_patch": "agentrl.tools.builtin.apply_patch:ApplyPatch",
        "search": "agentrl.tools.builtin.search.tool:Search",
        "bases": "agentrl.tools.builtin.search.bases:Bases",
        "sql": "agentrl.tools.builtin.sql:Sql",
        "http": "agentrl.tools.builtin.web.http:Http",
        "web": "agentrl.tools.builtin.web.tool:Web",
        "mcp": "agentrl.tools.builtin.mcp.tool:Mcp",
        "calculator": "agentrl.tools.builtin.calculator:Calculator",
        "route": "agentrl.tools.builtin.search.route:Route",
        "memory": "agentrl.tools.builtin.memory:Memory",
        "ask_user": "agentrl.tools.builtin.ask_user:AskUser",
        "judge": "agentrl.tools.builtin.judge:JudgeTool",
        "answer": "agentrl.tools.builtin.answer:Answer",
        "harbor": "agentrl.integrations.harbor.tool:Harbor",
        "repository": "agentrl.integrations.swe.tool:Repository",
        "gui": "agentrl.tools.builtin.gui.gui:Gui",
        "game": "agentrl.tools.builtin.games.game:Game",
        "trl_environment": "agentrl.integrations.trl_environment:TrlEnvironment",
    },
    wanted="a Tool or Environment subclass, a @tool function or tool.from_schema(...)",
    accept=_tool,
    contracts=[Tool],
    about=_about,
)
