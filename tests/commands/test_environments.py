"""Training on environments whose tools differ by task and change by turn: exact, and kills change no number."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, python
from tests.counting import metrics
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

CODE = """
from agentrl import Environment, Observation, Say, Task, tool

LEFT, RIGHT = ({"name": name, "description": "Go.", "parameters": {"type": "object", "properties": {}}}
               for name in ("left", "right"))

def tasks():
    yield Task.of("a", "Go.", tools=["Gate", LEFT])
    yield Task.of("b", "Go.", tools=["Gate", RIGHT])

class Gate(Environment):
    def open(self, task, sandbox):
        self.steps, self.info = 0, {"said": 0}
    def tools(self):
        return [self.knock] if self.steps else []
    def call_tool(self, name, arguments):
        self.steps += 1
        return f"went {name}"
    @tool
    async def knock(self) -> str:
        "Knock."
        self.steps += 1
        return "nobody"
    async def opening(self):
        return "A gate."
    async def respond(self, reply):
        self.info["said"] += 1
        return Observation("Silence.", done=self.info["said"] > 1)
    def state_key(self):
        return self.steps

def knocked(env, info) -> float:
    return env.steps - 0.1 * info["said"]

def hasty(task, rng):
    yield Say(calls=[(task.tools[1]["name"], {})])
    yield Say(calls=[("knock", {})])
    yield Say("so")
    yield Say("be it")
"""
RECIPE = """\
name: gate
tasks: ./task.py:tasks
agent: {format: tags, max_turns: 4, system: "Act."}
tools: [./task.py:Gate]
rewards: {knocked: ./task.py:knocked}
scripts: {hasty: ./task.py:hasty}
credit: {use: gigpo}
model: {scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 768}}
engine: {batch_invariant: true}
sampling: {max_tokens: 8}
warm_start: {script: hasty, episodes: 8, steps: 150, batch: 8, lr: 1.0e-2}
train: {iterations: 3, groups: 2, group_size: 3, minibatch: 6, lr: 1.0e-3}
eval: {episodes: 4}
concurrency: 8
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "task.py").write_text(CODE)
    (tmp_path / "gate" / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def test_kills_change_no_number(gate: Path) -> None:
    agentrl("train", "gate", "--out", "whole", cwd=gate)
    deaths = "rollout:14,optimiser step:2,checkpoint write:4,rollout:5,weight sync:1"
    python("-m", "tests.commands.lives", deaths, "train", "gate", "--out", "killed", cwd=gate)
    assert metrics(gate / "killed") == metrics(gate / "whole")
    for out in ("killed", "whole"):
        assert_sound(gate / out)
    with RunDir.read(gate / "killed") as run:
        trained = list(run.episodes(split="train"))
    assert {tuple(t["function"]["name"] for t in episode.tools or []) for episode in trained} == {("left",), ("right",)}
    branched = [episode for episode in trained if episode.branches]
    assert branched  # the demonstrations taught calls, which change the tools
    assert {branch.reason for episode in branched for branch in episode.branches} == {"tools"}
    assert all(episode.info["said"] >= 0 and episode.turns[0].state == "0" for episode in trained)
    again = agentrl("rescore", "killed", "--name", "again", cwd=gate).stdout
    assert "knocked" in again
