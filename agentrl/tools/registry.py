"""The tools by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agentrl.registry.registry import Registry
from agentrl.tools.base import Environment, FunctionTool, Tool
from agentrl.tools.methods import methods_of


def _tool(found: Any) -> Callable[..., Tool] | None:
    """Makes instances: a Tool subclass does, and so does a `@tool` function or one from a schema once it is wrapped."""
    if hasattr(found, "__agentrl_tool__"):
        return partial(FunctionTool, found)
    return found if isinstance(found, type) and issubclass(found, Tool) and found not in (Tool, Environment) else None


def _about(made: Callable[..., Tool]) -> Mapping[str, Any]:
    """What the model may call, as definitions. A built-in tool says it without its settings."""
    functions = methods_of(object.__new__(made)) if isinstance(made, type) and issubclass(made, Tool) else ()
    return {"functions": [method.definition() for method in functions]}


TOOLS: Registry[Callable[..., Tool]] = Registry(
    kind="tool",
    key="tools",
    built_in={
        "shell": "agentrl.tools.shell:Shell",
        "python": "agentrl.tools.python:Python",
        "compile": "agentrl.tools.compiling.tool:Compile",
        "files": "agentrl.tools.files:Files",
        "apply_patch": "agentrl.tools.patching.tool:ApplyPatch",
        "search": "agentrl.tools.search:Search",
        "bases": "agentrl.tools.desk.bases:Bases",
        "sql": "agentrl.tools.sql.tool:Sql",
        "http": "agentrl.tools.http.tool:Http",
        "web": "agentrl.tools.browser.tool:Web",
        "mcp": "agentrl.tools.mcp.tool:Mcp",
        "calculator": "agentrl.tools.desk.calculator:Calculator",
        "route": "agentrl.tools.route:Route",
        "memory": "agentrl.tools.desk.memory:Memory",
        "ask_user": "agentrl.tools.desk.ask_user:AskUser",
        "judge": "agentrl.tools.desk.judge:Judge",
        "answer": "agentrl.tools.answer:Answer",
        "harbor": "agentrl.integrations.harbor.tool:Harbor",
        "gui": "agentrl.tools.gui.gui:Gui",
        "game": "agentrl.tools.games.game:Game",
    },
    wanted="a Tool or Environment subclass, a @tool function or tool.from_schema(...)",
    accept=_tool,
    contracts=[Tool],
    about=_about,
)
