"""A value in the data of tasks that changes in steps as training goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field, model_validator

from agentrl.config.sections import Section
from agentrl.curriculum.methods.noise import with_data
from agentrl.curriculum.parts import CurriculumContext, GroupPlan, Schedule

Share = Annotated[float, Field(gt=0, lt=1)]


class StepwiseSettings(Section):
    """`key`: field of the task's data. `values`: what it holds, one after the other. `until`: the share of the planned
    iterations up to which each value but the last holds."""

    key: str
    values: list[float] = Field(min_length=1)
    until: list[Share]

    @model_validator(mode="after")
    def _one_step_less(self) -> Self:
        if len(self.until) != len(self.values) - 1 or self.until != sorted(self.until):
            raise ValueError("until needs one share less than there are values, in rising order")
        return self


class Stepwise(Schedule):
    """Writes values[k] into `task.data[key]`, with the least k such that (i + 1) / m <= until[k] at iteration i of m.

    A tool or a reward reads it. Tasks of an evaluation have no such field.
    """

    Settings = StepwiseSettings
    source = "Dynamic IoU of V-Triune, arXiv:2505.18129; MiniMax-AI/One-RL-to-See-Them-All reward_server/verify.py"
    certainty = "A"

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        own, done = self.settings, (context.iteration + 1) / context.iterations
        step = sum(done > share for share in own.until)
        return replace(group, task=with_data(group.task, own.key, own.values[step]))
