"""Samplers that choose among sources of tasks (data sets, domains): DUMP and DADS.

A task names its source in its data. Inside a source tasks come in their order.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CurriculumContext, Group, Sampler, data_of
from agentrl.curriculum.task_source import TaskSource
from agentrl.types.task import Task


class SourceSampler(Sampler):
    """Base: draws a source by weight, then that source's next task."""

    @abstractmethod
    def weights(self, sources: Sequence[str]) -> list[float]:
        """Of each source, up to a factor."""

    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        by_source: dict[str, list[Task]] = {}
        for task in tasks.tasks:
            by_source.setdefault(self.source_of(task), []).append(task)
        names = sorted(by_source)
        taken: dict[str, int] = self.state.setdefault("taken", {})
        drawn = []
        for name in context.rng.choices(names, self.weights(names), k=count):
            position = taken.get(name, 0)
            drawn.append(by_source[name][position % len(by_source[name])])
            taken[name] = position + 1
        return drawn

    def source_of(self, task: Task) -> str:
        return str(data_of(task, self.settings.key, self.name))


class DumpSettings(Section):
    """`key`: field of the task's data that names its source; dots lead inside. `window`: episodes that the mean is
    taken over."""

    key: str = "source"
    window: int = Field(300, gt=0)
    temperature: float = Field(0.1, gt=0)


class Dump(SourceSampler):
    """DUMP: a source is worth mean |advantage| + sqrt(2 ln(N + 1) / (n + 1)); softmax of that.

    The mean is over the source's last `window` episodes, n is how many episodes the source had, N how many all had.
    """

    Settings = DumpSettings
    source = "arXiv:2504.09710; ZhentingWang/DUMP@235e85d"
    certainty = "A"

    def weights(self, sources: Sequence[str]) -> list[float]:
        seen: dict[str, Any] = self.state.get("seen", {})
        count = {name: seen.get(name, {}).get("n", 0) for name in sources}
        recent = {name: seen.get(name, {}).get("recent", []) for name in sources}
        total = sum(count.values())
        scores = [
            sum(recent[name]) / max(len(recent[name]), 1) + math.sqrt(2 * math.log(total + 1) / (count[name] + 1))
            for name in sources
        ]
        return softmax(scores, self.settings.temperature)

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        seen = self.state.setdefault("seen", {})
        for group in groups:
            entry = seen.setdefault(self.source_of(group.task), {"n": 0, "recent": []})
            # An episode without credit taught nothing.
            values = [*group.mean_abs_advantages, *[0.0] * (len(group.episodes) - len(group.mean_abs_advantages))]
            entry["n"] += len(values)
            entry["recent"] = (entry["recent"] + values)[-self.settings.window :]


class DadsSettings(Section):
    """`key` as in DUMP. `memory`: iterations that count, the k-th last by 1 / k. `every`: iterations between two
    computations of the weights."""

    key: str = "source"
    target: float = 1.0
    floor: float = Field(0.1, gt=0)
    temperature: float = Field(0.3, gt=0)
    memory: int = Field(4, gt=0)
    every: int = Field(8, gt=0)


class Dads(SourceSampler):
    """DADS: weight exp((max(0, target - mean reward) + floor) / temperature): sources with low rewards come more often.

    As in the authors' code the k-th last iteration counts 1 / k, and the target is scaled alike. A new source has mean
    reward 0.
    """

    Settings = DadsSettings
    source = "RuleReasoner, arXiv:2506.08672; bigai-nlco/RuleReasoner@c6df021"
    certainty = "A"

    def weights(self, sources: Sequence[str]) -> list[float]:
        gaps = self.state.get("gaps", {})
        own = self.settings
        gap = [gaps.get(name, max(0.0, own.target)) for name in sources]
        return [math.exp((value + own.floor) / own.temperature) for value in gap]

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        own = self.settings
        now: dict[str, list[float]] = {}
        for group in groups:
            now.setdefault(self.source_of(group.task), []).extend(group.rewards)
        history: dict[str, list[float]] = self.state.setdefault("history", {})
        for name, rewards in now.items():
            if rewards:
                past = history.get(name, [])
                history[name] = [*past, sum(rewards) / len(rewards)][-own.memory :]
        if (context.iteration + 1) % own.every == 0:
            self.state["gaps"] = {name: self._gap(values) for name, values in history.items()}

    def _gap(self, history: Sequence[float]) -> float:
        own: DadsSettings = self.settings
        ages = range(len(history), 0, -1)
        mean = sum(value / age for value, age in zip(history, ages, strict=True)) / len(history)
        target = own.target * sum(1 / age for age in ages) / len(history)
        return max(0.0, target - mean)


def softmax(scores: Sequence[float], temperature: float) -> list[float]:
    """Weights that add up to 1."""
    top = max(scores)
    raised = [math.exp((score - top) / temperature) for score in scores]
    return [value / sum(raised) for value in raised]
