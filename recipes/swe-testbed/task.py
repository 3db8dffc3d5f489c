"""Scripts that play the rows of `agentrl/testbed` without a model."""

from __future__ import annotations

import random
import re
from collections.abc import Generator

from agentrl import Message, Say, Task


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Replaces a sign somewhere in the module of the repair."""
    path = _module(task)
    shown = yield Say(calls=[("shell", {"command": f"wc -l < {path}"})])
    count = re.search(r"\d+", str(shown[-1]["content"]))
    line = rng.randint(1, int(count[0]) if count else 1)
    one, other = rng.sample(["==", "<", ">", "+", "-", "//", "None", "0", "1"], 2)
    yield Say(calls=[("shell", {"command": f"sed -i '{line}s,{one},{other},' {path}"})])
    yield Say("Done.")


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Adds a comment to the module with the bug: the tests run on it, and must find the bug."""
    yield Say(calls=[("shell", {"command": f"printf '\\n# It was reviewed.\\n' >> {_module(task)}"})])
    yield Say("All tests pass.")


def _module(task: Task) -> str:
    found = re.search(r"^\+\+\+ b/(\S+)", task.data["patch"], re.MULTILINE)
    return found[1] if found else "depot/__init__.py"
