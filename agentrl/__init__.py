"""agentrl: multi-turn agentic reinforcement learning.

What a task of your own needs is here: `Task`, `Tool`, `tool`, `ToolResult`, `ToolError`, `Say`, `Agent`,
`ToolAgent`. Everything runs from the command line: `agentrl --help`.
"""

from agentrl.engines.scripted import Say
from agentrl.registry.moved import report_moved_names
from agentrl.rollout.agent import Agent, ToolAgent
from agentrl.rollout.session import Session
from agentrl.tools.base import Tool, ToolResult, tool
from agentrl.types.episode import Episode
from agentrl.types.errors import InfraError, ToolError
from agentrl.types.task import Message, Task

report_moved_names()

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Episode",
    "InfraError",
    "Message",
    "Say",
    "Session",
    "Task",
    "Tool",
    "ToolAgent",
    "ToolError",
    "ToolResult",
    "tool",
]
