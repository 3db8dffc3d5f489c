"""Parts that choose by the policy's own success rates: the hardest tasks, tasks of its level, unlikely tasks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from pydantic import Field, model_validator

from agentrl.curriculum.parts import CurriculumContext, Filter, Group, Sampler, Solving
from agentrl.curriculum.task_source import TaskSource
from agentrl.types.errors import TrainError
from agentrl.types.task import Task


class MeasuredSettings(Solving):
    """`passes` over all tasks, in which their success rates are measured and all of them train."""

    passes: int = Field(1, gt=0)


class Measured(Sampler):
    """Base: draws all tasks in order for some passes, then those that `chosen` selects, in turn.

    The rate of a task is that of its latest group.
    """

    @abstractmethod
    def chosen(self, rates: dict[str, float], iteration: int) -> list[str]:
        """The ids of the tasks to draw, given the rates of all tasks in their order."""

    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        start = self.state.get("drawn", 0)
        self.state["drawn"] = start + count
        known: dict[str, list[float]] = self.state.get("rates", {})
        if any(known.get(task.id, [0])[0] < self.settings.passes for task in tasks.tasks):
            return [tasks.at(start + index) for index in range(count)]
        chosen = self.chosen({task.id: known[task.id][1] for task in tasks.tasks}, context.iteration)
        if not chosen:
            raise TrainError(
                f"{self.name} selects none of {len(tasks.tasks)} tasks; their success rates are "
                f"{min(rate for _, rate in known.values()):g} to {max(rate for _, rate in known.values()):g}",
                place=f"curriculum: {self.name}",
                remedy="widen its limits, or take tasks of another difficulty",
            )
        self.state["chosen"] = len(chosen)
        by_id = {task.id: task for task in tasks.tasks}
        at = self.state.get("at", 0)
        self.state["at"] = at + count
        return [by_id[chosen[(at + index) % len(chosen)]] for index in range(count)]

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        rates = self.state.setdefault("rates", {})
        for group in groups:
            if group.episodes:
                tried = rates.get(group.task.id, [0])[0] + 1
                rates[group.task.id] = [tried, self.settings.solved(group) / len(group.episodes)]

    def metrics(self) -> dict[str, float]:
        return {"tasks": float(self.state["chosen"])} if "chosen" in self.state else {}


class HardFocusSettings(MeasuredSettings):
    """`keep`: number of tasks, or share of all tasks where it is below 1, in each phase; the last one stays.
    `every`: iterations of a phase."""

    keep: list[float] = Field([0.5, 0.35, 0.25], min_length=1)
    every: int = Field(50, gt=0)


class HardFocus(Measured):
    """DRIVE's hard-focus curriculum: phase by phase the tasks with the lowest success rates are retained.

    Each phase retains a subset of the previous one, so that no task returns. Among equal rates the first tasks stay.
    """

    Settings = HardFocusSettings
    source = "DRIVE, arXiv:2511.06307"
    certainty = "C"

    def chosen(self, rates: dict[str, float], iteration: int) -> list[str]:
        own, state = self.settings, self.state
        phase = min((iteration - state.setdefault("began", iteration)) // own.every, len(own.keep) - 1)
        while state.get("phase", -1) < phase:
            state["phase"] = state.get("phase", -1) + 1
            kept: list[str] = state.get("kept", list(rates))
            keep = own.keep[state["phase"]]
            most = math.ceil(keep * len(rates)) if keep < 1 else int(keep)
            hardest = set(sorted(kept, key=lambda id: rates[id])[:most])
            state["kept"] = [id for id in kept if id in hardest]
        return list(state["kept"])


class OfLevelSettings(MeasuredSettings):
    """`low`, `high`: success rates between which a task is chosen, bounds included."""

    low: float = Field(0.2, ge=0, le=1)
    high: float = Field(0.8, ge=0, le=1)

    @model_validator(mode="after")
    def _in_order(self) -> OfLevelSettings:
        if self.low > self.high:
            raise ValueError("'low' is above 'high'")
        return self


class OfLevel(Measured):
    """Trains on tasks that the policy sometimes solves: neither too hard nor too easy for this model.

    SimpleRL-Zoo chooses the level of a data set for each model by hand; here the tasks are chosen one by one. Rates
    stay as they were measured: a task that is not drawn any more keeps its rate.
    """

    Settings = OfLevelSettings
    source = "SimpleRL-Zoo, arXiv:2503.18892"
    certainty = "C"

    def chosen(self, rates: dict[str, float], iteration: int) -> list[str]:
        if "kept" not in self.state:
            self.state["kept"] = [id for id, rate in rates.items() if self.settings.low <= rate <= self.settings.high]
        return list(self.state["kept"])


class LowLikelihoodSettings(Solving):
    """`below`: a group trains if its share of solved episodes is lower."""

    below: float = Field(0.5, gt=0, le=1)


class LowLikelihood(Filter):
    """SELF: trains on tasks that the policy is unlikely to solve, so that likely ones do not crowd them out.

    The authors' code trains on the tasks whose greedy answer is wrong. Here the share of the group that is right
    decides, without another rollout: below 1/2 the most likely outcome is a failure.
    """

    Settings = LowLikelihoodSettings
    source = "arXiv:2510.02230; mail-research/SELF-llm-interference, RayMaxPPOTrainer"
    certainty = "B"

    def select(self, groups: list[Group], wanted: int, context: CurriculumContext) -> list[Group]:
        own = self.settings
        chosen = [group for group in groups if own.solved(group) < own.below * len(group.episodes)]
        self.state = {"groups": len(chosen)}
        return chosen

    def metrics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.state.items()}
