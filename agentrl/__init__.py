"""agentrl: multi-turn agentic reinforcement learning.

For a task of your own: `Task`, `Tool`, `Environment`, `tool`, `ToolResult`, `Observation`, `ToolError`, `Say`, `Reply`,
`Agent`, `ToolAgent`, `http_client`.
To run: `rollout`, `train`, `evaluate`, `check_environment`; of a stored run: `open_run`, `rescore`, `recredit`,
`fork`, `probe`. The command line calls them too: `agentrl --help`; docs/python.md.

Names are imported when they are first used: `import agentrl` itself costs milliseconds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentrl.registry.moved import report_moved_names

if TYPE_CHECKING:
    from agentrl.api.certify.check import check_environment
    from agentrl.api.evaluate import evaluate
    from agentrl.api.forks.fork import fork
    from agentrl.api.forks.probe import probe
    from agentrl.api.recredit import recredit
    from agentrl.api.rescore import rescore
    from agentrl.api.rollout import rollout
    from agentrl.api.run import Run, open_run
    from agentrl.api.train import train
    from agentrl.chat.formats.parser import Reply
    from agentrl.config.loader import load_recipe
    from agentrl.config.recipe import Recipe
    from agentrl.engines.scripted import Say
    from agentrl.rollout.agent import Agent, ToolAgent
    from agentrl.rollout.session import Session
    from agentrl.tools.base import Environment, Observation, Tool, ToolResult, tool
    from agentrl.types.episode import Episode
    from agentrl.types.errors import InfraError, ToolError
    from agentrl.types.http.client import http_client
    from agentrl.types.task import Message, Task

report_moved_names()

__version__ = "0.1.0"

_MODULES = {
    "Agent": "agentrl.rollout.agent",
    "Environment": "agentrl.tools.base",
    "Episode": "agentrl.types.episode",
    "InfraError": "agentrl.types.errors",
    "Message": "agentrl.types.task",
    "Observation": "agentrl.tools.base",
    "Reply": "agentrl.chat.formats.parser",
    "Run": "agentrl.api.run",
    "Say": "agentrl.engines.scripted",
    "Session": "agentrl.rollout.session",
    "Task": "agentrl.types.task",
    "Tool": "agentrl.tools.base",
    "ToolAgent": "agentrl.rollout.agent",
    "ToolError": "agentrl.types.errors",
    "ToolResult": "agentrl.tools.base",
    "Recipe": "agentrl.config.recipe",
    "check_environment": "agentrl.api.certify.check",
    "evaluate": "agentrl.api.evaluate",
    "fork": "agentrl.api.forks.fork",
    "http_client": "agentrl.types.http.client",
    "load_recipe": "agentrl.config.loader",
    "open_run": "agentrl.api.run",
    "probe": "agentrl.api.forks.probe",
    "recredit": "agentrl.api.recredit",
    "rescore": "agentrl.api.rescore",
    "tool": "agentrl.tools.base",
}

__all__ = [
    "Agent",
    "Environment",
    "Episode",
    "InfraError",
    "Message",
    "Observation",
    "Recipe",
    "Reply",
    "Run",
    "Say",
    "Session",
    "Task",
    "Tool",
    "ToolAgent",
    "ToolError",
    "ToolResult",
    "check_environment",
    "evaluate",
    "fork",
    "http_client",
    "load_recipe",
    "open_run",
    "probe",
    "recredit",
    "rescore",
    "rollout",
    "tool",
    "train",
]


class _CallablePackage(ModuleType):
    """A package that is the function of its name as well: `agentrl.train(recipe)`, and `agentrl.train.loop`."""

    @property
    def _function(self) -> Callable[..., Any]:
        name = self.__name__.rpartition(".")[2]
        found: Callable[..., Any] = getattr(importlib.import_module(f"agentrl.api.{name}"), name)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(self._function)


for _name in ("rollout", "train"):
    importlib.import_module(f"agentrl.{_name}").__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
