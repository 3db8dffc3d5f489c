"""A recipe whose policy can already do a little: counting, from a checkpoint that is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.api.train import train as train_recipe
from tests.lean import no_curves

__all__ = ["no_curves"]

CODE = """
from agentrl import Say, Task, Tool, ToolResult, tool
from agentrl.curriculum import Sampler

def counts(n=12):
    for k in range(n):
        yield Task.of(f"count{k}", f"Count to {k % 3 + 1}.", to=k % 3 + 1, source="ab"[k % 2], hint="one two three")

class Counter(Tool):
    async def open(self, task, sandbox): self.count, self.to, self.fog = 0, task.data["to"], task.data.get("noise")
    @tool
    async def add(self, by: int = 1) -> ToolResult:
        "Count on."
        self.count += by
        return ToolResult(str(self.count), done=self.count >= self.to, rewards={"small": float(by == 1)})
    def state_key(self): return str(self.count)

class Half(Sampler): pass

def exact(task, episode):
    said = [call.result for turn in episode.turns for call in turn.calls if call.outcome == "ok"]
    return float(said[-1:] == [str(task.data["to"])])

def nothing(episode):
    return None

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
agent: {format: tags, max_turns: 4, describe_tools: false}
model: {scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 300, max_context: 256}}
sampling: {max_tokens: 8}
credit: {use: grpo}
warm_start: {script: hasty, episodes: 24, steps: 80, batch: 8, lr: 3.0e-3}
train: {iterations: 1, groups: 2, group_size: 2, lr: 1.0e-3}
"""


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The recipe's file, and overrides that start from the checkpoint."""
    folder = tmp_path_factory.mktemp("counting")
    (folder / "task.py").write_text(CODE)
    (folder / "recipe.yaml").write_text(RECIPE)
    run = folder / "warm"
    train_recipe(folder, out=run)
    newest = sorted((run / "checkpoints").glob("it-*"))[-1]
    return [str(folder), f"model={{path: {Path(newest)}}}", "warm_start=null"]
