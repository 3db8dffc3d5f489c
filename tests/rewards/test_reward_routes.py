"""`reward_of`: tasks of a mixed set name the components that score them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agentrl
from agentrl.api.rescore import rescore
from agentrl.config.rewards import Gate, RewardRoute
from agentrl.rewards import RewardSet
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.task import Task
from tests.command import agentrl as command
from tests.rewards.make import make_episode

SUM = Task.of("sum", "2 + 2?", answer="4", source="sums")
CITY = Task.of("city", "Capital of France?", gold=["Paris"], source=["words"])


def rewards(**more):
    def never(episode):
        raise AssertionError("called for a task that it does not score")

    def bonus(episode):
        return 0.5

    specs = {
        "sums": {"use": "numeric"}, "words": {"use": "f1", "key": "gold"}, "bonus": {"use": bonus},
        "never": {"use": never, "required": True},
    }  # fmt: skip
    return RewardSet.from_recipe(specs, route=RewardRoute(field="source", always=["bonus"]), **more)


async def test_only_the_named_components_score_a_task():
    one = await rewards().score(SUM, make_episode(SUM, answer="4"))
    assert (one.components, one.total) == ({"sums": 1.0, "bonus": 0.5}, 1.5)
    other = await rewards().score(CITY, make_episode(CITY, answer="Lyon"))
    assert (other.components, other.total) == ({"words": 0.0, "bonus": 0.5}, 0.5)


async def test_a_gate_on_a_component_that_does_not_score_the_task_is_absent():
    gates = [Gate(on="sums", at_least=1)]
    shut = await rewards(gates=gates).score(SUM, make_episode(SUM, answer="5"))
    assert shut.total == 0.0
    free = await rewards(gates=gates).score(CITY, make_episode(CITY, answer="Paris"))
    assert (free.gates, free.total) == ([], 1.5)


@pytest.mark.parametrize(
    ("data", "said"),
    [({"source": "sumz"}, "task t: data 'source'.*names 'sumz', which is no reward component\n.*sums"),
     ({"source": ["sums", 3]}, "names 3"), ({}, "data 'source'.*is missing\n.*one of sums")],
)  # fmt: skip
def test_what_a_task_names_must_exist(data, said):
    with pytest.raises(TaskError, match=said):
        rewards().of(Task.of("t", "", **data))


def test_the_route_names_components():
    with pytest.raises(RecipeError, match=r"reward_of.always: there is no reward component 'bonus'"):
        RewardSet.from_recipe({"f1": {}}, route=RewardRoute(field="x", always=["bonus"]))
    only_recorded = RewardSet.from_recipe({"f1": {}, "format": {"weight": 0}}, route=RewardRoute(field="x"))
    with pytest.raises(TaskError, match="task t: no component with a weight scores it: format"):
        only_recorded.of(Task.of("t", "", x="format"))


TASKS = """
from agentrl import Say, Task

def mixed(wrong=False):
    yield Task.of("sum", "2 + 2?", answer="4", source="sums")
    yield Task.of("city", "Capital of France?", gold=["Paris"], source="wrods" if wrong else "words")
    yield Task.of("vote", "Heads or tails?", source="agreed")

def oracle(task, rng):
    yield Say({"sum": "4", "city": "Paris", "vote": "heads"}[task.id])
"""


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASKS)
    recipe = {
        "name": "mixed", "tasks": "./task.py:mixed", "scripts": {"oracle": "./task.py:oracle"}, "reward_of": "source",
        "rewards": {
            "sums": {"use": "numeric", "required": True}, "words": {"use": "f1", "key": "gold", "required": True},
            "agreed": "majority_vote",
        },
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    return tmp_path


@pytest.mark.slow
def test_a_mixed_set_is_checked_played_and_scored_again(mixed: Path) -> None:
    command("recipe", "check", ".", cwd=mixed)
    agentrl.rollout("recipe.yaml", 6, group_size=2, script="oracle", out="run", reporters=())
    with RunDir.read("run") as run:
        episodes = list(run.episodes())
        scored = {e.task.id: e.components for e in episodes}
        assert scored == {"sum": {"sums": 1.0}, "city": {"words": 1.0}, "vote": {"agreed": 1.0}}
        assert [e.reward for e in episodes] == [1.0] * 6
        assert sum(run.group_scores(e.id) is not None for e in episodes) == 2  # those of the vote
    assert check("run").ok
    result = rescore("run")
    assert not result["failed"]
    assert {name: found["unscored"] for name, found in result["components"].items()} == dict.fromkeys(
        ["sums", "words", "agreed", "reward"], 0
    )


@pytest.mark.slow
def test_recipe_check_names_the_task(mixed: Path) -> None:
    done = command("recipe", "check", ".", "--set", "tasks.args={wrong: true}", cwd=mixed, ok=False)
    assert done.returncode == 1
    assert "task city" in done.stderr
    assert "'wrods', which is no reward component" in done.stderr
