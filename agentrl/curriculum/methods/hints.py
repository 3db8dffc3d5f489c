"""SEELE: shows the share of a hint with which a task is solved half of the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from pydantic import Field

from agentrl.curriculum.methods.noise import with_data
from agentrl.curriculum.parts import CurriculumContext, Group, GroupPlan, Schedule, Solving, data_of
from agentrl.types.parts.content import joined

GUESSES = (0.0, 0.1, 0.25)
SLOPES = (2.0, 4.0, 8.0, 16.0)
MIDDLES = tuple(k / 20 for k in range(-10, 31))


class SeeleSettings(Solving):
    """`key`: field of the task's data with the whole hint; the share shown is written to `KEY_rate`."""

    key: str = "hint"
    before: str = "\n\nHint: "
    target: float = Field(0.5, gt=0, lt=1)
    first: float = Field(0.0, ge=0, le=1)
    memory: int = Field(8, gt=0)


class Seele(Schedule):
    """Fits accuracy = c + (1 - c) / (1 + exp(-a (rate - b))), the 3PL curve, to a task's results with its last hints,
    and shows the share of words at which the curve is `target`.

    The authors fit within an iteration, over rounds of rollouts; here a round is an iteration that tries the task. The
    hint is part of the prompt: it is not trained (their separate supervised term is left out).
    """

    Settings = SeeleSettings
    source = "arXiv:2509.06923"
    certainty = "B"

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        own = self.settings
        words = str(data_of(group.task, own.key, self.name)).split(" ")
        history = self.state.get(group.task.id, [])
        rate = rate_for(own.target, history) if history else own.first
        shown = " ".join(words[: math.ceil(rate * len(words))])
        task = with_data(group.task, f"{own.key}_rate", rate)
        if shown:
            *before, last = task.instruction
            last = {**last, "content": joined(last["content"], f"{own.before}{shown}")}
            task = msgspec.structs.replace(task, instruction=[*before, last])
        return replace(group, task=task)

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        own = self.settings
        for group in groups:
            if group.episodes:
                rate = group.task.data[f"{own.key}_rate"]
                point = [rate, own.solved(group) / len(group.episodes)]
                self.state[group.task.id] = [*self.state.get(group.task.id, []), point][-own.memory :]


def rate_for(target: float, history: Sequence[Sequence[float]]) -> float:
    """The hint rate, 0 to 1, at which the curve through (rate, accuracy) points is at `target`.

    Least squares over a grid; a weak pull towards slope 8 and middle 1/2 decides where points are few.
    """

    def misfit(curve: tuple[float, float, float]) -> float:
        c, a, b = curve
        errors = sum((y - c - (1 - c) / (1 + math.exp(-a * (x - b)))) ** 2 for x, y in history)
        return errors + 0.01 * ((b - 0.5) ** 2 + math.log(a / 8) ** 2 + c)

    c, a, b = min(((c, a, b) for c in GUESSES for a in SLOPES for b in MIDDLES), key=misfit)
    if target <= c:
        return 0.0
    above = (target - c) / (1 - c)
    return min(1.0, max(0.0, b + math.log(above / (1 - above)) / a))
