"""Questions with one correct answer, in train.jsonl and test.jsonl, and a tool to compute it."""

from agentrl import Say, tool


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def oracle(task, rng):
    """Solves every task."""
    yield Say(calls=[("add", {"a": task.data["a"], "b": task.data["b"]})])
    yield Say(f"<answer>{task.data['answer']}</answer>")
