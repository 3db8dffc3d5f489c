"""agentrl: multi-turn agentic reinforcement learning.

What a task of your own needs is here: `Task`, `Tool`, `tool`, `ToolResult`, `ToolError`, `Say`, `Agent`,
`ToolAgent`. Everything runs from the command line: `agentrl --help`.
"""

from agentrl.agent import Agent, ToolAgent
from agentrl.engines.scripted import Say
from agentrl.episode.record import Episode
from agentrl.episode.session import Session
from agentrl.errors import InfraError, ToolError
from agentrl.task import Message, Task
from agentrl.tools.base import Tool, ToolResult, tool

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
