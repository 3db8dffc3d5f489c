"""LIMR: trains on all tasks for some passes, then only on tasks whose rewards follow the mean curve."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CurriculumContext, Group, Sampler
from agentrl.curriculum.task_source import TaskSource
from agentrl.types.errors import TrainError
from agentrl.types.task import Task


class LimrSettings(Section):
    """`passes` over all tasks that are watched, and the `threshold` of the score from which a task stays. `metric`: as
    in `zero_variance`, by default `reward`, the outcome."""

    passes: int = Field(4, gt=1)
    threshold: float = Field(0.6, lt=1)
    metric: str = "reward"


class Limr(Sampler):
    """Learning impact: s_i = 1 - sum_k (r_i^k - r^k)^2 / sum_k (1 - r^k)^2 over passes k.

    r_i^k is the mean of task i in pass k, r^k the mean over tasks. The paper selects once, from a discarded
    training; here the same training continues with the tasks whose score exceeds the threshold.
    """

    Settings = LimrSettings
    source = "arXiv:2502.11886"
    certainty = "C"

    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        start = self.state.get("drawn", 0)
        self.state["drawn"] = start + count
        if "chosen" not in self.state and self._watched(tasks):
            self.state["chosen"] = self._choose(tasks)
        chosen = self.state.get("chosen")
        if chosen is None:
            return [tasks.at(start + index) for index in range(count)]
        by_id = {task.id: task for task in tasks.tasks}
        return [by_id[chosen[(start + index) % len(chosen)]] for index in range(count)]

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        if "chosen" in self.state:
            return
        curves: dict[str, list[float]] = self.state.setdefault("curves", {})
        for group in groups:
            if group.episodes:
                curves.setdefault(group.task.id, []).append(group.mean(self.settings.metric))

    def metrics(self) -> dict[str, float]:
        return {"tasks": float(len(self.state["chosen"]))} if "chosen" in self.state else {}

    def _watched(self, tasks: TaskSource) -> bool:
        curves = self.state.get("curves", {})
        return all(len(curves.get(task.id, ())) >= self.settings.passes for task in tasks.tasks)

    def _choose(self, tasks: TaskSource) -> list[str]:
        passes = range(self.settings.passes)
        curves = {task.id: self.state["curves"][task.id] for task in tasks.tasks}
        mean = [sum(curve[k] for curve in curves.values()) / len(curves) for k in passes]
        scale = sum((1 - mean[k]) ** 2 for k in passes) or 1.0
        score = {id: 1 - sum((curve[k] - mean[k]) ** 2 for k in passes) / scale for id, curve in curves.items()}
        chosen = [id for id, value in score.items() if value > self.settings.threshold]
        if not chosen:
            raise TrainError(
                f"no task has a learning impact above {self.settings.threshold:g}; the best is "
                f"{max(score.values()):.3f}",
                place="curriculum: limr",
                remedy="lower limr.threshold",
            )
        return chosen
