"""Repair tasks: a small Python file with one bug, a sandbox with a shell, and hidden tests."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl import Say, Task

# Description of f, correct body with a placeholder, correct and wrong part, and assertion.
KINDS = [
    ("adds {k} to a number", "x + {k}", ("+", "-"), "f({a}) == {a} + {k}"),
    ("gives the numbers below {k}", "[n for n in x if n < {k}]", ("<", ">"), "f([1, {k}, 99]) == [1]"),
    ("counts how often {k} occurs", "x.count({k})", ("count", "index"), "f([{k}, 1, {k}]) == 2"),
    ("leaves out the last {k} items", "x[:-{k}]", (":-", "-"), "f([0] * {k} + [1] * {k}) == [0] * {k}"),
]


def bugs(n: int = 24, split: str = "train") -> Iterator[Task]:
    """Yields tasks; each `split` has other numbers."""
    for index in range(n):
        rng = random.Random(f"{split} {index}")
        about, body, (right, wrong), holds = KINDS[index % len(KINDS)]
        k, a = rng.randint(3, 90), rng.randint(100, 999)
        code = f"def f(x):\n    return {body.format(k=k)}\n"
        yield Task.of(
            f"{split}{index}",
            f"The function f in code.py {about.format(k=k)}, but it is wrong. Repair it.",
            sandbox={"files": {"code.py": code.replace(right, wrong)}},
            code=code,
            tests=[f"assert {holds.format(k=k, a=a)}", "assert callable(f)"],
        )


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Solves every task."""
    yield Say(calls=[("shell", {"command": f"cat > code.py <<'END'\n{task.data['code']}END\n"})])
    yield Say("Done.")
