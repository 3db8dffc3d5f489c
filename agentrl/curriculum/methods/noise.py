"""ZeroSearch: an environment that gets noisier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from pydantic import Field, model_validator

from agentrl.config.sections import Section
from agentrl.curriculum.parts import CurriculumContext, GroupPlan, Schedule
from agentrl.types.task import Task


class ZeroSearchSettings(Section):
    """`key`: field of the task's data with the probability of noise, for a tool. `over`: iterations of the rise; None:
    all of `train.iterations`."""

    key: str = "noise"
    start: float = Field(0.0, ge=0, le=1)
    end: float = Field(0.5, ge=0, le=1)
    base: float = Field(4.0, gt=0)
    over: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _curved(self) -> ZeroSearchSettings:
        if self.base == 1:
            raise ValueError("base 1 divides by zero; a base just above it is a straight line")
        return self


class ZeroSearch(Schedule):
    """p = start + (base^(i / m) - 1) / (base - 1) (end - start) at iteration i of m, written into `task.data[key]`.

    The tool draws with it: the built-in `search` then returns passages that have nothing to do with the query, drawn
    once for a task and a query. With `search: {engine: simulated}` a language model writes the noise, as in ZeroSearch.
    """

    Settings = ZeroSearchSettings
    source = "arXiv:2505.04588; Alibaba-NLP/ZeroSearch@2d4cdca"
    certainty = "A"

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        own = self.settings
        done = min(context.iteration / (own.over or context.iterations), 1.0)
        noise = own.start + (own.base**done - 1) / (own.base - 1) * (own.end - own.start)
        return replace(group, task=with_data(group.task, own.key, noise))


def with_data(task: Task, key: str, value: Any) -> Task:
    """The task with one field of its data changed."""
    return msgspec.structs.replace(task, data={**task.data, key: value})
