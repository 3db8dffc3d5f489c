"""A recipe that needs nothing: no model, no sandbox, no data."""

from __future__ import annotations

from pathlib import Path

import pytest

CODE = """
import asyncio
from agentrl import Say, Task, Tool, ToolResult, tool

def counts(n=40):
    for k in range(n):
        yield Task.of(f"count{k}", f"Count to {k % 5 + 1}.", to=k % 5 + 1)

class Counter(Tool):
    def __init__(self, delay: float = 0.0): self.delay = delay
    async def open(self, task, sandbox): self.count, self.to = 0, task.data["to"]
    @tool
    async def add(self, by: int = 1) -> ToolResult:
        "Count on."
        await asyncio.sleep(self.delay)
        self.count += by
        return ToolResult(str(self.count), done=self.count >= self.to)
    def state_key(self): return str(self.count)

def exact(task, episode):
    said = [call.result for turn in episode.turns for call in turn.calls if call.outcome == "ok"]
    return float(said[-1:] == [str(task.data["to"])])

def oracle(task, rng):
    for _ in range(task.data["to"]):
        yield Say(calls=[("add", {})])

def hasty(task, rng):
    while True:
        yield Say(calls=[("add", {"by": rng.randint(1, 3)})])
"""

RECIPE = """\
name: counting
tasks: ./task.py:counts
tools: [./task.py:Counter]
rewards: {exact: ./task.py:exact}
scripts: {oracle: ./task.py:oracle, hasty: ./task.py:hasty}
"""


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """The folder of the recipe; the parent is where commands run."""
    folder = tmp_path / "counting"
    folder.mkdir()
    (folder / "task.py").write_text(CODE)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder
