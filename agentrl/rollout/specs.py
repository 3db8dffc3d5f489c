"""Episode specs: which episodes are to be, with ids that do not depend on what already ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agentrl.curriculum.parts import GroupPlan
from agentrl.curriculum.task_source import TaskSource
from agentrl.store.run_dir import RunDir
from agentrl.types.task import Task


@dataclass(frozen=True)
class EpisodeSpec:
    """An episode to come. Its id is known before it runs: resume is a set difference."""

    id: str
    group_id: str
    task: Task
    iteration: int = 0
    split: str = "train"
    max_turns: int | None = None  # None: the context's


def rollout_specs(
    tasks: TaskSource, episodes: int, *, group_size: int = 1, split: str = "rollout", prefix: str = ""
) -> list[EpisodeSpec]:
    """`episodes` episodes: the tasks in order, each `group_size` times, again from the start when they run out.

    Args:
        prefix: what ids begin with: that of the stage.
    """
    specs = []
    for number in range(episodes):
        position, member = divmod(number, group_size)
        task = tasks.at(position)
        group = f"{prefix}{split}/{position:06d}-{task.id}"
        specs.append(EpisodeSpec(f"{group}#{member}", group, task, split=split))
    return specs


def iteration_specs(groups: Sequence[GroupPlan], iteration: int, prefix: str = "") -> list[EpisodeSpec]:
    """The episodes of one training iteration, by its groups."""
    specs = []
    for index, group in enumerate(groups):
        specs += group_specs(group, group_id(iteration, index, group.task, prefix), iteration)
    return specs


def group_id(iteration: int, index: int, task: Task, prefix: str = "") -> str:
    """Id of the `index`-th group that was drawn for a training iteration."""
    return f"{prefix}train/{iteration:05d}/{index:03d}-{task.id}"


def group_specs(group: GroupPlan, id: str, iteration: int) -> list[EpisodeSpec]:
    """The episodes of one group."""
    return [
        EpisodeSpec(f"{id}#{member}", id, group.task, iteration, "train", group.max_turns)
        for member in range(group.size)
    ]


def eval_specs(tasks: TaskSource, episodes: int, iteration: int, prefix: str = "") -> list[EpisodeSpec]:
    """Fresh episodes for one evaluation; each task has as many as the others, give or take one."""
    specs = []
    for number in range(episodes):
        task = tasks.at(number)
        group = f"{prefix}eval/{iteration:05d}/{task.id}"
        specs.append(EpisodeSpec(f"{group}#{number // len(tasks)}", group, task, iteration, "eval"))
    return specs


def missing(specs: Iterable[EpisodeSpec], run: RunDir) -> list[EpisodeSpec]:
    """The specs that no stored episode fulfils. One that failed before runs again under a new id (`~1`, `~2`, ...)."""
    planned = list(specs)
    ids = {index: spec.id for index, spec in enumerate(planned)}
    todo: dict[int, EpisodeSpec] = {}
    attempt = 0
    while ids:
        stored = run.statuses(ids.values())
        todo |= {index: replace(planned[index], id=id) for index, id in ids.items() if id not in stored}
        attempt += 1
        failed = [index for index, id in ids.items() if stored.get(id) in ("infra_error", "user_error")]
        ids = {index: f"{planned[index].id}~{attempt}" for index in failed}
    return [todo[index] for index in sorted(todo)]
