"""`agentrl env check` finds what is wrong with published environments that are known to be broken (make test-envs).

What it finds stands in the certificate, which `agentrl recipe check` tells. tau2's and AgentDojo's recipes are these
environments with the broken tasks left out by name: here they are played with them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.api.recipes import given_recipe
from agentrl.curriculum.task_source import load_tasks
from tests.command import agentrl
from tests.environments.packages import needs

pytestmark = [
    pytest.mark.family("envs"),
    pytest.mark.timeout(3600),
]

RECIPES = Path(__file__).parents[2] / "recipes"
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


def found(folder: Path, n: int) -> dict[str, dict[str, Any]]:
    """The findings of a check that must fail, as the stored certificate has them; `recipe check` says so."""
    check = ("env", "check", str(folder), "--n", str(n), "--store", "--json")
    said = agentrl(*check, cwd=folder.parent, ok=False, timeout=3500)
    assert said.returncode == 1, said.stderr
    (certificate,) = folder.glob("*.certificate.json")
    stored = json.loads(certificate.read_text())
    assert stored == json.loads(said.stdout)
    assert f"not certified on {n} tasks" in agentrl("recipe", "check", str(folder), cwd=folder.parent).stdout
    return {finding["check"]: finding for finding in stored["findings"]}


def test_nonsense_passes_game_of_life_halting(tmp_path: Path) -> None:
    """The scorer of reasoning-gym 0.1.25 gives 1 to an answer that is neither True nor False."""
    needs("reasoning_gym")
    folder = tmp_path / "halting"
    folder.mkdir()
    (folder / "task.py").write_text(HALTING)
    (folder / "recipe.yaml").write_text(RECIPE)
    said = found(folder, 6)
    assert said["gold passes"]["state"] == "pass"
    assert said["junk fails"]["state"] == "fail"
    assert said["junk fails"]["tasks"]


@pytest.mark.parametrize(
    ("recipe", "package", "args", "count"),
    [
        ("tau2/airline.yaml", "tau2", {}, 13),
        ("tau2/airline.yaml", "tau2", {"split": "test"}, 6),
        ("tau2/retail.yaml", "tau2", {}, 5),
        ("tau2/retail.yaml", "tau2", {"split": "test"}, 2),
        ("agentdojo/recipe.yaml", "agentdojo", {"suite": "banking"}, 3),
        ("agentdojo/recipe.yaml", "agentdojo", {"suite": "banking", "held_out": True}, 2),
    ],
)
def test_doing_nothing_passes(tmp_path: Path, recipe: str, package: str, args: dict[str, Any], count: int) -> None:
    """On the tasks that the recipe leaves out, and on no other."""
    needs(package)
    folder = tmp_path / package
    shutil.copytree(RECIPES / Path(recipe).parent, folder)
    given = yaml.safe_load((folder / Path(recipe).name).read_text())
    known = given["tasks"].pop("exclude")
    given["tasks"]["args"] = {**given["tasks"].get("args", {}), **args}
    given.pop("eval", None)
    for other in (*folder.glob("*.yaml"), *folder.glob("*.certificate.json")):
        other.unlink()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(given))
    loaded = given_recipe(folder)
    here = {task.id for task in load_tasks(loaded.tasks, loaded.base, loaded.seed).tasks}
    said = found(folder, len(here))
    assert said["gold passes"]["state"] == "pass"
    assert said["empty fails"]["state"] == "fail"
    assert {*said["empty fails"]["tasks"]} == {*known} & here
    assert len({*known} & here) == count
