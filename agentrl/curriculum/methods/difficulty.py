"""Samplers that prefer tasks which are sometimes solved: VAS and VADE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentrl.curriculum.parts import CurriculumContext, Group, Sampler, Solving
from agentrl.curriculum.task_source import TaskSource
from agentrl.types.task import Task


class VasSettings(Solving):
    """`weighted`: share of the tasks drawn by weight (with replacement); the others are drawn uniformly."""

    every: int = Field(4, gt=0)
    weighted: float = Field(0.5, ge=0, le=1)


class Vas(Sampler):
    """VAS: a task weighs p (1 - p), the variance of its success rate p, refreshed every few iterations.

    The paper adds the diversity of trajectories; the released configuration and this code do not. A task that was never
    tried weighs 1/4, the maximum.
    """

    Settings = VasSettings
    source = "MMR1, arXiv:2509.21268; LengSicong/MMR1@d8161a0"
    certainty = "A"

    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        rates: dict[str, float] = self.state.get("rates", {})
        weights = [(p := rates.get(task.id, 0.5)) * (1 - p) for task in tasks.tasks]
        weighted = round(count * self.settings.weighted) if any(weights) else 0
        drawn = context.rng.choices(tasks.tasks, weights, k=weighted) if weighted else []
        rest = count - weighted
        uniform = [context.rng.sample(tasks.tasks, min(rest, len(tasks))) for _ in range(0, rest, len(tasks))]
        return (drawn + [task for lap in uniform for task in lap])[:count]

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        pending: dict[str, list[int]] = self.state.setdefault("pending", {})
        for group in groups:
            solved, tried = pending.get(group.task.id, [0, 0])
            pending[group.task.id] = [solved + self.settings.solved(group), tried + len(group.episodes)]
        if (context.iteration + 1) % self.settings.every == 0:
            fresh = {id: solved / tried for id, (solved, tried) in pending.items() if tried}
            self.state = {"rates": {**self.state.get("rates", {}), **fresh}, "pending": {}}


class VadeSettings(Solving):
    """`decay` of the posterior's counts when the task is tried again; `power` of 1 - p in the score."""

    decay: float = Field(0.9, gt=0, le=1)
    power: float = Field(2.0, gt=0)


class Vade(Sampler):
    """VADE: a Beta posterior of every task's success rate; draws p from each and takes the tasks with the highest
    p (1 - p)^power.

    One secondary source gives the power 2, which is the default; `power: 1` is the variance. There is one decay; the
    paper's abstract speaks of two scales.
    """

    Settings = VadeSettings
    source = "VADE, arXiv:2511.18902, by a secondary source"
    certainty = "B"

    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        posterior: dict[str, Any] = self.state
        scored = []
        for index, task in enumerate(tasks.tasks):
            p = context.rng.betavariate(*posterior.get(task.id, (1.0, 1.0)))
            scored.append((-p * (1 - p) ** self.settings.power, index))
        best = [tasks.tasks[index] for _, index in sorted(scored)]
        return [best[index % len(best)] for index in range(count)]

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        for group in groups:
            solved = self.settings.solved(group)
            right, wrong = self.state.get(group.task.id, (1.0, 1.0))
            decay = self.settings.decay
            self.state[group.task.id] = [
                1 + decay * (right - 1) + solved,
                1 + decay * (wrong - 1) + len(group.episodes) - solved,
            ]
