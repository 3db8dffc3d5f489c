"""Tasks of rising difficulty: the next level begins when the policy solves enough of this one."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from agentrl.curriculum.parts import CurriculumContext, Group, Sampler, Solving, data_of
from agentrl.curriculum.task_source import TaskSource
from agentrl.types.errors import TaskError
from agentrl.types.figures.sums import total
from agentrl.types.task import Task


class LevelsSettings(Solving):
    """`key`: field of the task's data with its level, a number; dots lead inside. `at`: mean share of solved episodes
    from which the next level begins. `groups`: number of the level's latest groups that the mean is taken over."""

    key: str = "level"
    at: float = Field(0.75, gt=0, le=1)
    groups: int = Field(16, gt=0)


class Levels(Sampler):
    """SATURN: draws tasks of one level, in their order, until the policy solves enough of them; then of the next.

    The authors measure pass@1 on validation tasks of the level before each stage of training. Here the level's own
    training groups measure it, without further rollouts. The last level stays.
    """

    Settings = LevelsSettings
    source = "SATURN, arXiv:2505.16368, algorithm of the curriculum"
    certainty = "B"

    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        by_level: dict[float, list[Task]] = {}
        for task in tasks.tasks:
            by_level.setdefault(self._level_of(task), []).append(task)
        if "level" not in self.state:
            self.state |= {"level": min(by_level), "drawn": 0, "shares": []}
        self.state["higher"] = sorted(level for level in by_level if level > self.state["level"])
        own, start = by_level[self.state["level"]], self.state["drawn"]
        self.state["drawn"] = start + count
        return [own[(start + index) % len(own)] for index in range(count)]

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        own, state = self.settings, self.state
        if "level" not in state:  # Nothing was drawn: the groups are those of a record.
            return
        shares = [
            own.solved(group) / len(group.episodes)
            for group in groups
            if group.episodes and self._level_of(group.task) == state["level"]
        ]
        state["shares"] = [*state["shares"], *shares][-own.groups :]
        if state["higher"] and len(state["shares"]) == own.groups and self._mean() >= own.at:
            state |= {"level": state["higher"][0], "drawn": 0, "shares": []}

    def metrics(self) -> dict[str, float]:
        if "level" not in self.state:
            return {}
        solved = {"solved": self._mean()} if self.state["shares"] else {}
        return {"level": float(self.state["level"]), **solved}

    def _mean(self) -> float:
        """Mean share of solved episodes in the latest groups of the level."""
        return total(self.state["shares"]) / len(self.state["shares"])

    def _level_of(self, task: Task) -> float:
        level = data_of(task, self.settings.key, self.name)
        if not isinstance(level, int | float):
            raise TaskError(
                f"task {task.id!r} has the level {level!r}, which is not a number",
                place=f"curriculum: {self.name}",
                remedy=f"{self.settings.key}: 0 for the easiest tasks, then 1, ...",
            )
        return level
