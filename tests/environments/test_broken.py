"""`agentrl env check` finds what is wrong with published environments that are known to be broken (make test-envs)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from agentrl.api.certify.check import check_environment

pytestmark = pytest.mark.skipif(not os.environ.get("AGENTRL_TEST_ENVS"), reason="takes long: make test-envs")

HALTING = """
import reasoning_gym
from agentrl import Say, Task

def dataset():
    return reasoning_gym.create_dataset("game_of_life_halting", size=20, seed=1)

def tasks():
    for number, entry in enumerate(dataset()):
        yield Task.of(f"halting{number}", entry["question"], number=number, gold=str(entry["answer"]))

def score(task, episode):
    found = dataset()
    return float(found.score_answer(episode.answer, found[task.data["number"]]))

def oracle(task, rng):
    yield Say(task.data["gold"])
"""
RECIPE = """
name: halting
tasks: ./task.py:tasks
agent: {max_turns: 6}
rewards: {score: ./task.py:score}
scripts: {oracle: ./task.py:oracle}
"""


@pytest.mark.timeout(1800)
@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="pip install reasoning-gym")
def test_nonsense_passes_game_of_life_halting(tmp_path: Path) -> None:
    """The scorer of reasoning-gym 0.1.25 gives 1 to an answer that is neither True nor False."""
    (tmp_path / "task.py").write_text(HALTING)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    found = {each.check: each for each in check_environment(tmp_path, n=6, out=tmp_path / "runs").findings}
    assert found["gold passes"].state == "pass"
    assert found["junk fails"].state == "fail"
    assert found["junk fails"].tasks
