"""A recipe that needs nothing: no model, no sandbox, no data. What it takes to train a policy on it, and to compare two
trainings. `tests.checkpoint` has a policy that was trained on it a little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.store.run_dir import RunDir

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

TRAINING = """\
agent: {format: tags, max_turns: 6, describe_tools: false}
model: {scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 300, max_context: 256}}
sampling: {max_tokens: 8}
credit: {use: gigpo}
warm_start: {script: hasty, episodes: 24, steps: 80, batch: 8, lr: 3.0e-3}
train: {iterations: 5, groups: 3, group_size: 4, minibatch: 6, lr: 1.0e-3, entropy_bonus: 0.01}
eval: {episodes: 12}
"""

TINY = """\
agent: {format: tags, max_turns: 4, describe_tools: false}
model: {scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 128}}
sampling: {max_tokens: 6}
credit: {use: gigpo}
warm_start: {script: hasty, episodes: 8, steps: 4, batch: 8, lr: 3.0e-3}
concurrency: 8
"""
"""For a training that learns nothing; what is missing is `train` and `eval`."""

HELD = """
from pathlib import Path

class Held(Counter):
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        while task.id != "count0" and Path("hold").exists():
            await asyncio.sleep(0.01)
"""
"""Code for the recipe: with this tool, episodes wait while there is a file `hold`, but for the first."""

TIMES = ("rollout_s", "train_s", "episodes_in_flight", "rollouts_wait_s", "loop_stalls", "loop_stall_s")
# The canary compares with the last version that arrived. A resumed run does not know it yet.
CANARY = ("canary_gap", "canary_moved", "canary_arrived", "canary_s")
# Log-probabilities that the engine reported carry the rounding of batches whose make-up depends on timing.
ROUNDED = ("mismatch_mean", "mismatch_max", *CANARY)
EXACT = ("engine.batch_invariant=true", "model.device=cpu")
"""With these there is no such rounding."""


VARIED = """

def varied(episode):
    return float(sum(len(turn.text) for turn in episode.turns) % 5)
"""
"""A reward that differs between the episodes of a policy that solves nothing: without a signal no weight moves."""


def write(folder: Path, more: str = "") -> Path:
    """Makes the folder of the recipe; `more` is added to its YAML."""
    folder.mkdir()
    (folder / "task.py").write_text(CODE)
    (folder / "recipe.yaml").write_text(RECIPE + more)
    return folder


def metrics(run: Path, but_for: tuple[str, ...] = ROUNDED) -> list[dict[str, Any]]:
    """The lines of a run, without what differs between equal trainings."""
    with RunDir.read(run) as reader:
        lines = reader.metrics()
    return [{k: v for k, v in line.items() if k not in (*TIMES, *but_for, "at")} for line in lines]
