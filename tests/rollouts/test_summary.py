"""Metrics of episodes: the mean of each reward component."""

from __future__ import annotations

from agentrl.rollouts.summary import summary
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
