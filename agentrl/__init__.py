"""agentrl: multi-turn agentic reinforcement learning.

For a task of your own: `Task`, `Tool`, `Environment`, `tool`, `ToolResult`, `Observation`, `ToolError`,
`ScoringPrevented`, `Say`, `Reply`, `Agent`, `ToolAgent`, `http_client`.
To run: `rollout`, `train`, `eval`, `check_environment`; of a stored run: `open_run`, `rescore`, `credit`,
`fork`, `probe`, `credit_truth`, `export`. The command line calls them too: `agentrl --help`; docs/python.md.

Names are imported when they are first used: `import agentrl` itself costs milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.api.certify.check import check_environment
    from agentrl.api.credit import credit
    from agentrl.api.eval import eval
    from agentrl.api.export.export import export
    from agentrl.api.forks.fork import fork
    from agentrl.api.forks.probe import probe
    from agentrl.api.forks.truth import credit_truth
    from agentrl.api.recipes import load_recipe
    from agentrl.api.rescore import rescore
    from agentrl.api.rollout import rollout
    from agentrl.api.run import Run, open_run
    from agentrl.api.train import train
    from agentrl.chat.formats.parser import Reply
    from agentrl.config.recipe import Recipe
    from agentrl.engines.scripted import Say
    from agentrl.rollouts.agent import Agent, ToolAgent
    from agentrl.rollouts.session import Session
    from agentrl.tools.base import Environment, Observation, Tool, ToolResult, tool
    from agentrl.types.distribution import __version__ as __version__
    from agentrl.types.episode import Episode
    from agentrl.types.errors import InfraError, ScoringPrevented, ToolError
    from agentrl.types.http.client import http_client
    from agentrl.types.task import Message, Task

_MODULES = {
    "__version__": "agentrl.types.distribution",
    "Agent": "agentrl.rollouts.agent",
    "Environment": "agentrl.tools.base",
    "Episode": "agentrl.types.episode",
    "InfraError": "agentrl.types.errors",
    "Message": "agentrl.types.task",
    "Observation": "agentrl.tools.base",
    "Reply": "agentrl.chat.formats.parser",
    "Run": "agentrl.api.run",
    "Say": "agentrl.engines.scripted",
    "ScoringPrevented": "agentrl.types.errors",
    "Session": "agentrl.rollouts.session",
    "Task": "agentrl.types.task",
    "Tool": "agentrl.tools.base",
    "ToolAgent": "agentrl.rollouts.agent",
    "ToolError": "agentrl.types.errors",
    "ToolResult": "agentrl.tools.base",
    "Recipe": "agentrl.config.recipe",
    "check_environment": "agentrl.api.certify.check",
    "eval": "agentrl.api.eval",
    "export": "agentrl.api.export.export",
    "fork": "agentrl.api.forks.fork",
    "http_client": "agentrl.types.http.client",
    "load_recipe": "agentrl.api.recipes",
    "open_run": "agentrl.api.run",
    "probe": "agentrl.api.forks.probe",
    "credit": "agentrl.api.credit",
    "credit_truth": "agentrl.api.forks.truth",
    "rescore": "agentrl.api.rescore",
    "rollout": "agentrl.api.rollout",
    "tool": "agentrl.tools.base",
    "train": "agentrl.api.train",
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
    "ScoringPrevented",
    "Session",
    "Task",
    "Tool",
    "ToolAgent",
    "ToolError",
    "ToolResult",
    "check_environment",
    "credit",
    "credit_truth",
    "eval",
    "export",
    "fork",
    "http_client",
    "load_recipe",
    "open_run",
    "probe",
    "rescore",
    "rollout",
    "tool",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
