"""Counting tasks of `staged` with a hint each: the whole way to the number, of which a share is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl import Task
from agentrl.registry.references import load_object

numbers = load_object("../../staged/task.py:numbers", Path(__file__).parent)


def hinted(highest: int = 7) -> Iterator[Task]:
    """The tasks, each with a way of steps of at most 2."""
    for task in numbers(highest):
        twos, one = divmod(task.data["to"], 2)
        steps = [*["add 2,"] * twos, *["add 1,"] * one]
        hint = "first " + " then ".join(steps).rstrip(",")
        yield msgspec.structs.replace(task, data={**task.data, "hint": hint})
