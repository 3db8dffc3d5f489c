"""pass@k and pass^k of evaluations."""

from __future__ import annotations

import json
from itertools import combinations
from math import prod
from pathlib import Path

import pytest

from agentrl.curriculum.task_source import TaskSource
from agentrl.rollouts.passes import passes, sizes
from agentrl.rollouts.specs import eval_specs
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.checkpoint import trained_model, trained_run
from tests.command import agentrl

__all__ = ["trained_model", "trained_run"]

WORTH = {"+": 1.0, "-": 0.0, "?": None}


def tries(task: str, outcomes: str, **data: int) -> list[Episode]:
    """Episodes of a task: `+` succeeded, `-` failed, `?` was not measured."""
    made = Task.of(task, "Go.", tools=None, sandbox=None, **data)
    return [
        Episode(id=f"{task}#{n}", group_id=task, task=made, status="done", reward=WORTH[each])
        for n, each in enumerate(outcomes)
    ]


@pytest.mark.parametrize("outcomes", ["++--", "+---", "----", "++++", "+++-----"])
def test_both_are_means_over_all_draws_of_k_tries(outcomes: str) -> None:
    found = passes(tries("a", outcomes), 4)
    for k in (1, 2, 4):
        draws = [[each == "+" for each in draw] for draw in combinations(outcomes, k)]
        assert found[f"pass@{k}"] == pytest.approx(sum(map(any, draws)) / len(draws))
        assert found[f"pass^{k}"] == pytest.approx(sum(map(prod, draws)) / len(draws))


def test_what_was_not_measured_is_no_failure() -> None:
    found = passes([*tries("a", "+?+?"), *tries("b", "--??"), *tries("c", "????")], 4)
    assert found == {"success": 0.5, "pass@1": 0.5, "pass^1": 0.5, "pass@2": 0.5, "pass^2": 0.5}


def test_tables_are_by_the_values_of_a_field() -> None:
    episodes = [*tries("a", "+-", level=1), *tries("b", "++", level=1), *tries("c", "--", level=2), *tries("d", "+-")]
    found = passes(episodes, 2, "level")
    assert {name: value for name, value in found.items() if name.endswith("level=1")} == {
        "tasks/level=1": 2, "success/level=1": 0.75, "pass@1/level=1": 0.75, "pass^1/level=1": 0.75,
        "pass@2/level=1": 1.0, "pass^2/level=1": 0.5,
    }  # fmt: skip
    assert found["pass@2/level=2"] == 0
    assert found["pass@2"] == 0.75
    assert passes(episodes, 1, "level") == {
        "tasks/level=1": 2, "success/level=1": 0.75, "tasks/level=2": 1, "success/level=2": 0,
    }  # fmt: skip
    assert passes(episodes, 1) == {}


def test_sizes_are_powers_of_two_and_k() -> None:
    assert [sizes(k) for k in (1, 2, 3, 8, 10)] == [[], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


def test_an_evaluation_plays_a_task_several_times_before_the_next() -> None:
    tasks = TaskSource([Task(id="a", instruction=[]), Task(id="b", instruction=[])])
    ids = [spec.id for spec in eval_specs(tasks, 5, 3, tries=2)]
    assert ids == [f"eval/00003/{task}" for task in ("a#0", "a#1", "b#0", "b#1", "a#2", "a#3")]
    assert [spec.id for spec in eval_specs(tasks, 3, 3)] == [f"eval/00003/{task}" for task in ("a#0", "b#0", "a#1")]


RECIPE = """\
name: coin
tasks: {source: ./task.py:tosses}
agent: {max_turns: 1}
rewards: {success: ./task.py:heads}
sampling: {max_tokens: 2}
eval: {episodes: 3, k: 2, by: coin}
"""
CODE = """
from agentrl import Task

def tosses():
    for n, coin in enumerate(["new", "old", "new"]):
        yield Task.of(f"toss{n}", "Toss.", coin=coin)

def heads(episode):
    return float(episode.id.endswith("#1"))
"""


@pytest.mark.slow
def test_eval_plays_each_task_k_times_and_prints_the_table(tmp_path: Path, trained_model: Path) -> None:
    policy = ("--set", f"model={{path: {trained_model}, device: cpu}}")
    (tmp_path / "coin").mkdir()
    (tmp_path / "coin/recipe.yaml").write_text(RECIPE)
    (tmp_path / "coin/task.py").write_text(CODE)
    told = agentrl("eval", "coin", *policy, "--n", "6", "--out", "run", cwd=tmp_path)
    assert "pass@2 1" in told.stdout
    assert "coin=new" in told.stdout
    found = json.loads(agentrl("eval", "coin", *policy, "--n", "3", "--json", "--out", "few", cwd=tmp_path).stdout)
    assert (found["episodes"], found["pass@1"], found["pass@2"], found["pass^2"]) == (4, 0.5, 1.0, 0.0)
    assert (found["tasks/coin=new"], found["tasks/coin=old"]) == (1, 1)
    wrong = agentrl("eval", "coin", *policy, "--by", "coins", cwd=tmp_path, ok=False)
    assert "no task of the evaluation has the field 'coins'" in wrong.stderr
    assert "eval.by" in wrong.stderr
