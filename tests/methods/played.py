"""Groups of episodes that are written by hand, and what the curriculum of a recipe makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.curriculum import CreditedEpisode, Curriculum, Group, GroupPlan
from agentrl.curriculum.curriculum import load_parts
from agentrl.curriculum.task_source import TaskSource
from agentrl.estimators.registry import EpisodeCredit
from agentrl.rewards.components import RewardSet
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.task import Task


def episode(
    id: str,
    reward: float,
    *,
    task: Task | None = None,
    turns: int = 1,
    logprob: float = -1.0,
    rewards: Mapping[str, float | None] | None = None,
    components: Mapping[str, float | None] | None = None,
) -> Episode:
    """An episode of the group of its task: `turns` replies of two tokens, each of the same log-probability."""
    task = task or Task.of("t", "Go.")
    nodes = [Node(parent=-1, kind="prompt", token_ids=[1])]
    nodes += [Node(parent=k, kind="sampled", token_ids=[2, 3], logprobs=[logprob] * 2) for k in range(turns)]
    said = [Turn(index=k, node=k + 1, text="", finish="stop", rewards=dict(rewards or {})) for k in range(turns)]
    return Episode(
        id=id, group_id=f"g-{task.id}", task=task, status="done", nodes=nodes, turns=said, reward=reward,
        components=dict(components or {}),
    )  # fmt: skip


def group(task: str | Task, *rewards: float, advantages: Sequence[float] = ()) -> Group:
    """A group of episodes with these rewards."""
    task = Task.of(task, "Go.") if isinstance(task, str) else task
    members = [episode(f"{task.id}#{k}", reward, task=task) for k, reward in enumerate(rewards)]
    return Group(f"g-{task.id}", task, members, list(advantages))


def tasks(*ids: str, **data: Any) -> TaskSource:
    """Tasks in this order, all with the same data."""
    return TaskSource([Task.of(id, "Go.", **data) for id in ids], shuffle=False, seed=0)


def credited(of: Episode, advantage: float = 0.5) -> CreditedEpisode:
    """The episode, every turn with the same credit."""
    return CreditedEpisode(
        of, EpisodeCredit(episode_id=of.id, estimator="", turn_advantages=[advantage] * len(of.turns))
    )


def rewards_of(recipe: Recipe) -> RewardSet:
    """The reward components of a recipe, with its gates."""
    rewards = {name: each.spec for name, each in recipe.rewards.items()}
    return RewardSet.from_recipe(rewards, recipe.base, recipe.gate, recipe.reward_of, recipe.success)


def scored(recipe: Recipe, of: Episode, **values: Any) -> Episode:
    """The episode with the rewards of a recipe, given what its components say."""
    rewards = rewards_of(recipe)
    known = {each.name: values[each.name] for each in rewards.components}
    return rewards.combine(of, known).onto(of)


def curriculum(recipe: Recipe, *past: Episode, iterations: int = 10) -> Curriculum:
    """The curriculum of a recipe that has played `past`."""
    parts = load_parts(recipe.curriculum, recipe.base, recipe.scripts)
    known = {each.id: each for each in past}
    return Curriculum(parts, seed=0, iterations=iterations, episode=known.__getitem__, of_stage=lambda name: past)


def planned(recipe: Recipe, task: Task, at: int = 0, after: Sequence[Group] = (), iterations: int = 10) -> GroupPlan:
    """The plan of a task's group, 8 episodes of at most 12 turns, after an iteration with these groups."""
    found = curriculum(recipe, iterations=iterations)
    if after:
        found.observe(after, max(at - 1, 0))
    (plan,) = found.draw(TaskSource([task], shuffle=False, seed=0), 1, 8, 12, at)
    return plan


def drawn(curriculum: Curriculum, source: TaskSource, count: int, at: int = 0) -> list[str]:
    """The ids of the tasks of an iteration."""
    return [plan.task.id for plan in curriculum.draw(source, count, 8, 12, at)]
