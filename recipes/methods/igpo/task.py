"""IGPO's outcome."""

from __future__ import annotations

from agentrl.rewards.functions.verifiers import f1, format
from agentrl.types.episode import Episode
from agentrl.types.task import Task


def outcome(task: Task, episode: Episode) -> float:
    """The F1 of the answer's words; -2 if a call could not be read or there is no answer."""
    return f1(task, episode) if format(episode) == 1.0 else -2.0
