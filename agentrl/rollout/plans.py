"""Plans: which episodes are to be, with ids that do not depend on what already ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agentrl.curriculum.parts import GroupPlan
from agentrl.curriculum.task_source import TaskSource
from agentrl.rollout.runner import Plan
from agentrl.store.run_dir import RunDir
from agentrl.types.task import Task


def rollout_plans(tasks: TaskSource, episodes: int, *, group_size: int = 1, split: str = "rollout") -> list[Plan]:
    """`episodes` episodes: the tasks in order, each `group_size` times, again from the start when they run out."""
    plans = []
    for number in range(episodes):
        position, member = divmod(number, group_size)
        task = tasks.at(position)
        group = f"{split}/{position:06d}-{task.id}"
        plans.append(Plan(f"{group}#{member}", group, task, split=split))
    return plans


def iteration_plans(groups: Sequence[GroupPlan], iteration: int) -> list[Plan]:
    """The episodes of one training iteration, by its groups."""
    plans = []
    for index, group in enumerate(groups):
        plans += group_plans(group, group_id(iteration, index, group.task), iteration)
    return plans


def group_id(iteration: int, index: int, task: Task) -> str:
    """Id of the `index`-th group that was drawn for a training iteration."""
    return f"train/{iteration:05d}/{index:03d}-{task.id}"


def group_plans(group: GroupPlan, id: str, iteration: int) -> list[Plan]:
    """The episodes of one group."""
    return [Plan(f"{id}#{member}", id, group.task, iteration, "train", group.max_turns) for member in range(group.size)]


def eval_plans(tasks: TaskSource, episodes: int, iteration: int, label: str = "eval") -> list[Plan]:
    """Fresh episodes for one evaluation; each task has as many as the others, give or take one."""
    plans = []
    for number in range(episodes):
        task = tasks.at(number)
        group = f"{label}/{iteration:05d}/{task.id}"
        plans.append(Plan(f"{group}#{number // len(tasks)}", group, task, iteration, "eval"))
    return plans


def missing(plans: Iterable[Plan], run: RunDir) -> list[Plan]:
    """The plans that no stored episode fulfils. One that failed before runs again under a new id (`~1`, `~2`, ...)."""
    planned = list(plans)
    ids = {index: plan.id for index, plan in enumerate(planned)}
    todo: dict[int, Plan] = {}
    attempt = 0
    while ids:
        stored = run.statuses(ids.values())
        todo |= {index: replace(planned[index], id=id) for index, id in ids.items() if id not in stored}
        attempt += 1
        failed = [index for index, id in ids.items() if stored.get(id) in ("infra_error", "user_error")]
        ids = {index: f"{planned[index].id}~{attempt}" for index in failed}
    return [todo[index] for index in sorted(todo)]
