"""Rows in the form of SWE-bench: what `task.data` must hold, and a script that applies the row's own patch."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import dataclass

from agentrl.engines.scripted import Say
from agentrl.rewards.functions.patch import changes
from agentrl.types.errors import TaskError
from agentrl.types.task import Message, Task


@dataclass(frozen=True)
class SweRow:
    """A row.

    Attributes:
        base_commit: the commit to start from; "" for the one that the image has checked out.
        patch: the repair; "" if it is not known.
        test_patch: what the tests of the row add to the repository.
        fail_to_pass: ids of tests that a repair makes pass.
        pass_to_pass: ids of tests that must still pass.
    """

    base_commit: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def row_of(task: Task) -> SweRow:
    """Returns the row of a task.

    Raises:
        TaskError: a column is missing, or is not of the form.
    """
    texts = {key: task.data.get(key, "") for key in ("base_commit", "patch", "test_patch")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise TaskError(f"{key} is {text!r:.80}", place=f"task {task.id!r}", remedy="give it as a text")
    if texts["test_patch"] and not changes(texts["test_patch"]):
        raise TaskError("test_patch is no unified diff", place=f"task {task.id!r}", remedy="mend the row")
    fail, keep = (_ids(task, key) for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    if not fail:
        remedy = "leave the row out"
        if "FAIL_TO_PASS" not in task.data:
            columns = ", ".join(task.data)
            remedy = f"name its column: tasks.fields: {{FAIL_TO_PASS: COLUMN, PASS_TO_PASS: COLUMN}}; it has: {columns}"
        raise TaskError("FAIL_TO_PASS names no test", place=f"task {task.id!r}", remedy=remedy)
    return SweRow(**texts, fail_to_pass=fail, pass_to_pass=keep)


def _ids(task: Task, key: str) -> tuple[str, ...]:
    held = task.data.get(key, ())
    try:
        held = json.loads(held) if isinstance(held, str) else held
    except ValueError:
        held = None
    if not isinstance(held, list | tuple) or not all(isinstance(each, str) and ".py" in each for each in held):
        said = f"{key} is {task.data.get(key)!r:.80}"
        remedy = "give pytest's ids (tests/test_a.py::test_b), as a list or as JSON"
        raise TaskError(said, place=f"task {task.id!r}", remedy=remedy)
    return tuple(held)


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Applies the row's `patch` with the tool `shell`."""
    patch = row_of(task).patch
    yield Say(calls=[("shell", {"command": f"git apply - <<'END_OF_PATCH'\n{patch.rstrip(chr(10))}\nEND_OF_PATCH"})])
    yield Say("Done.")
