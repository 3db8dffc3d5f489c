"""Scripts of methods in which a policy tries again, on the sums of recipes/math-python."""

from __future__ import annotations

import random
import re
from collections.abc import Generator

from agentrl import Message, Say, Task

FORMS = ("{} + {} * {}", "({} + {}) * {}", "{} * {} - {}", "({} - {}) * {}")


def persistent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Has a calculator compute one of the forms that a sum may have; after a wrong answer, another one."""
    while True:
        for form in rng.sample(FORMS, len(FORMS)):
            asked = form.format(*re.findall(r"\d+", task.data["code"]))
            seen = yield Say(calls=[("calculate", {"expression": asked})])
            yield Say(f"<answer>{seen[-1]['content']}</answer>")


def hunch(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Answers with a remainder that is frequent, at once; after a wrong answer, with another one."""
    while True:
        for number in rng.sample((1, 2, 3, 4, 5, 7, 9, 16), 8):
            yield Say(f"<answer>{number}</answer>")
