"""Episode specs: the planned episodes, with ids that do not depend on finished episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agentrl.curriculum.parts import GroupPlan
from agentrl.curriculum.task_source import TaskSource
from agentrl.rollouts.conversation.resumption import Prefix
from agentrl.store.reader import RunReader
from agentrl.types.episode import Episode, Parent
from agentrl.types.memory import TextMemory
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Task


@dataclass(frozen=True)
class EpisodeSpec:
    """A planned episode. Its id is known before it runs, so resuming is a set difference."""

    id: str
    group_id: str
    task: Task
    iteration: int = 0
    split: str = "train"
    max_turns: int | None = None  # None: the context's
    resumes: Prefix | None = None  # None: from the beginning
    temperature: float | None = None  # None: the context's
    memory: TextMemory | None = None  # that of the policy when the episode begins


def rollout_specs(
    tasks: TaskSource, episodes: int, *, group_size: int = 1, split: str = "rollout", prefix: str = ""
) -> list[EpisodeSpec]:
    """Returns `episodes` specs: the tasks in order, each `group_size` times, repeated from the start when they run out.

    Args:
        prefix: prefix of the episode ids, one per stage.
    """
    specs = []
    for number in range(episodes):
        position, member = divmod(number, group_size)
        task = tasks.at(position)
        group = f"{prefix}{split}/{position:06d}-{task.id}"
        specs.append(EpisodeSpec(f"{group}#{member}", group, task, split=split))
    return specs


def iteration_specs(groups: Sequence[GroupPlan], iteration: int, prefix: str = "") -> list[EpisodeSpec]:
    """Returns the specs of one training iteration, group by group."""
    specs = []
    for index, group in enumerate(groups):
        specs += group_specs(group, group_id(iteration, index, group.task, prefix), iteration)
    return specs


def group_id(iteration: int, index: int, task: Task, prefix: str = "") -> str:
    """Returns the id of the `index`-th group of a training iteration."""
    return f"{prefix}train/{iteration:05d}/{index:03d}-{task.id}"


def group_specs(group: GroupPlan, id: str, iteration: int, further: int = 0) -> list[EpisodeSpec]:
    """Returns the specs of one group."""
    return [
        EpisodeSpec(
            f"{id}#{member}", id, group.task, iteration, "train", group.max_turns, temperature=group.temperature
        )
        for member in range(group.size + further)
    ]


def eval_specs(
    tasks: TaskSource, episodes: int, iteration: int, prefix: str = "", *, tries: int = 1
) -> list[EpisodeSpec]:
    """Returns specs of new episodes for one evaluation, each task `tries` times in a row.

    The number of episodes is rounded up to whole tasks. Tasks are repeated from the start when they run out.
    """
    specs = []
    for number in range(-(-episodes // tries) * tries):
        position, member = divmod(number, tries)
        task = tasks.at(position)
        group = f"{prefix}eval/{iteration:05d}/{task.id}"
        member += position // len(tasks) * tries
        specs.append(EpisodeSpec(f"{group}#{member}", group, task, iteration, "eval"))
    return specs


def fork_specs(parent: Episode, run: str, turn: int, n: int, seed: int, split: str = "rollout") -> list[EpisodeSpec]:
    """Returns `n` specs, a group, that resume a stored episode from its turn `turn`.

    Args:
        run: id of the run that holds the parent.
        seed: of that run.
    """
    seeds = [*(parent.parent.seeds if parent.parent else ()), (parent.taken, derive_seed(seed, "episode", parent.id))]
    prefix = Prefix(
        Parent(run=run, episode=parent.id, turn=turn, seeds=[s for s in seeds if s[0] < max(turn, 1)]),
        parent,
        seeds[0][1],
    )
    group = f"fork/{parent.id}@{turn}"
    return [EpisodeSpec(f"{group}#{k}", group, parent.task, parent.iteration, split, resumes=prefix) for k in range(n)]


def missing(specs: Iterable[EpisodeSpec], run: RunReader) -> list[EpisodeSpec]:
    """Returns the specs without a finished stored episode. A failed episode is repeated with a new id (`~1`, `~2`,
    ...).
    """
    planned = list(specs)
    ids = {index: spec.id for index, spec in enumerate(planned)}
    todo: dict[int, EpisodeSpec] = {}
    attempt = 0
    while ids:
        stored = run.values("status", ids.values())
        todo |= {index: replace(planned[index], id=id) for index, id in ids.items() if id not in stored}
        attempt += 1
        failed = [index for index, id in ids.items() if stored.get(id) in ("infra_error", "user_error")]
        ids = {index: f"{planned[index].id}~{attempt}" for index in failed}
    return [todo[index] for index in sorted(todo)]
