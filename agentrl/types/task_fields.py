"""Fields of a task in commands and variables of programs: `{instruction}`, `{id}`, `{data.KEY}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentrl.types import values
from agentrl.types.errors import TaskError, nearest
from agentrl.types.parts.content import text_of
from agentrl.types.task import Task

_PLACE = re.compile(r"\{([a-z]+|data\.[A-Za-z0-9_.-]+)\}")
_DATA = "data."


def of_task(task: Task) -> dict[str, str]:
    """Returns the values of a task's placeholders by name."""
    said = "\n\n".join(text_of(message["content"]) for message in task.instruction if message["role"] == "user")
    data = {f"{_DATA}{key}": values.text(value) for key, value in task.data.items()}
    return {"instruction": said, "id": task.id, **data}


def names(text: str) -> set[str]:
    """Returns the names of the placeholders of a task in a text."""
    return {name for name in _PLACE.findall(text) if name in ("instruction", "id") or name.startswith(_DATA)}


def fill(text: str, known: Mapping[str, str]) -> str:
    """Replaces placeholders by their values. Other words in braces stay.

    Raises:
        TaskError: the task lacks a key of `{data.KEY}`.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in known and name.startswith(_DATA):
            there = [each.removeprefix(_DATA) for each in known if each.startswith(_DATA)]
            raise TaskError(
                f"the task has no {name!r}",
                place=f"task {known['id']}",
                remedy=nearest(name.removeprefix(_DATA), there, "its data has"),
            )
        return known.get(name, match[0])

    return _PLACE.sub(value, text)
