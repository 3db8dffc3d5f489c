"""Metrics of episodes: the mean of each reward component."""

from __future__ import annotations

import msgspec
import pytest

from agentrl.curriculum.task_source import TaskSource
from agentrl.rollouts.specs import eval_specs
from agentrl.rollouts.summary import passes, summary
from agentrl.types.episode import Episode, Turn
from agentrl.types.task import Task


def episode(id: str, components: dict[str, float | None], *turns: dict[str, float | None]) -> Episode:
    told = [Turn(index=i, node=0, text="", finish="stop", rewards=rewards) for i, rewards in enumerate(turns)]
    task = Task(id="t", instruction=[])
    return Episode(id=id, group_id="g", task=task, status="done", components=components, reward=1.0, turns=told)


def test_each_component_has_its_mean_over_the_episodes_that_it_scored() -> None:
    metrics = summary(
        [
            episode("a", {"point": 1.0, "format": 0.5}, {"nearer": 1.0}, {"nearer": -0.5, "late": None}),
            episode("b", {"point": 0.0, "format": None}),
            episode("c", {"text": 0.25}, {"nearer": 0.5}),
        ]
    )
    means = {name: value for name, value in metrics.items() if name.startswith("rewards/")}
    assert means == {"rewards/format": 0.5, "rewards/nearer": 0.5, "rewards/point": 0.5, "rewards/text": 0.25}


def test_a_single_component_is_the_reward() -> None:
    assert not [name for name in summary([episode("a", {"right": 1.0})]) if name.startswith("rewards/")]


def test_pass_at_k_is_the_chance_that_one_of_k_succeeds() -> None:
    won = {"a": [1, 0, 0, 0], "b": [1, 1, 1], "c": [0, 0, 0, 0]}
    played = [
        msgspec.structs.replace(episode(f"{task}{n}", {}), group_id=task, reward=float(one))
        for task, results in won.items()
        for n, one in enumerate(results)
    ]
    # Of a's six pairs three hold the success; b lost an episode and has no four.
    assert passes(played, 4) == pytest.approx({"pass_at/1": 1.25 / 3, "pass_at/2": 1.5 / 3, "pass_at/4": 1 / 2})
    assert passes(played, 3).keys() == {"pass_at/1", "pass_at/2"}
    assert passes(played, 1) == {}


def test_an_evaluation_plays_a_task_several_times_before_the_next() -> None:
    tasks = TaskSource([Task(id="a", instruction=[]), Task(id="b", instruction=[])])
    ids = [spec.id for spec in eval_specs(tasks, 6, 3, samples=2)]
    assert ids == [f"eval/00003/{task}" for task in ("a#0", "a#1", "b#0", "b#1", "a#2", "a#3")]
    assert [spec.id for spec in eval_specs(tasks, 3, 3)] == [f"eval/00003/{task}" for task in ("a#0", "b#0", "a#1")]
