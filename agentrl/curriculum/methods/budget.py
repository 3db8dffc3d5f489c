"""A limit of turns for each task, from what a demonstration of it takes."""

from __future__ import annotations

import math
from dataclasses import replace

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CurriculumContext, GroupPlan, Schedule, data_of
from agentrl.types.errors import TaskError
from agentrl.types.figures.sums import reaches


class ExpertBudgetSettings(Section):
    """`key`: field of the task's data with the turns of a demonstration. `times`: how often as many are allowed.
    `least`: turns that every episode has."""

    key: str = "expert_turns"
    times: float = Field(2.0, gt=0)
    least: int = Field(2, gt=0)


class ExpertBudget(Schedule):
    """Ends hopeless episodes early: after ceil(times task.data[key]) turns, from `least` to `agent.max_turns`.

    An episode that has taken twice the turns of an expert is lost or walks in circles: it fails, and the long tail of a
    batch is not waited for. Evaluations have the limit of the recipe.
    """

    Settings = ExpertBudgetSettings
    source = "dynamic early stopping of ActiveVLN, arXiv:2509.12618; arvillion/ActiveVLN"
    certainty = "B"

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        own, turns = self.settings, data_of(group.task, self.settings.key, self.name)
        if isinstance(turns, bool) or not isinstance(turns, int | float) or not reaches(turns, 0):
            raise TaskError(
                f"task {group.task.id!r} has {turns!r} as {own.key!r}, which is no number of turns",
                place="curriculum",
                remedy="the number of turns that a demonstration takes",
            )
        return replace(group, max_turns=min(group.max_turns, max(own.least, math.ceil(own.times * turns))))
