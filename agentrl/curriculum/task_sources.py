"""The built-in sources of tasks by name: functions that yield tasks of a format (docs/adapters.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.registry.registry import Registry, any_function

SOURCES: Registry[Callable[..., Any]] = Registry(
    kind="source of tasks",
    group="sources",
    key="tasks.source",
    built_in={
        "harbor": "agentrl.integrations.harbor.tasks:tasks",
        "accepted": "agentrl.integrations.accepted:tasks",
        "generated": "agentrl.curriculum.generated:tasks",
        "guest": "agentrl.integrations.guests:tasks",
    },
    wanted="a function that returns or yields tasks",
    accept=any_function,
    filled=("seed", "base", "excluded_by", "skipped"),
)

TOOLS_OF = {"harbor": "harbor"}
"""By source, the tool without which its tasks cannot be played: it puts their files into the sandbox."""
