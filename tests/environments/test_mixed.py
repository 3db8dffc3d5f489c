"""recipes/mixed: four recipes' tasks in turn, each with its own tools and its own reward; trains."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentrl.api.rollout import rollout
from agentrl.config.loader import load_recipe
from agentrl.curriculum.task_source import load_tasks
from agentrl.rollouts.summary import summary

RECIPE = Path(__file__).parents[2] / "recipes" / "mixed"
MISSING = [each for each in ("bfcl_eval", "minigrid", "chinook") if importlib.util.find_spec(each) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]


def test_each_source_has_its_own_reward_and_its_oracle_wins(tmp_path: Path) -> None:
    run = rollout(RECIPE, 8, script="oracle", out=tmp_path / "run", reporters=())
    episodes = list(run.dir.episodes())
    assert [(e.status, e.reward) for e in episodes] == [("done", 1.0)] * 8
    assert all({*e.components} == {e.task.data["source"]} for e in episodes)
    assert {e.task.data["source"] for e in episodes} == {"calls", "search", "sql", "world"}
    metrics = summary(episodes)
    assert [metrics[f"rewards/{source}"] for source in ("calls", "search", "sql", "world")] == [1.0] * 4


def test_held_out_tasks_are_others() -> None:
    settings = load_recipe(str(RECIPE))
    both = (settings.tasks, settings.eval.tasks)
    train, test = ({task.id for task in load_tasks(tasks, settings.base, 0).tasks} for tasks in both)
    assert train
    assert test
    assert not train & test
