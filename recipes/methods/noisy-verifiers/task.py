"""Sums that a brittle rule checks, a model that rechecks what it rejects, and the forward correction of rewards."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from pydantic import Field

from agentrl import Episode, Say, Task
from agentrl.config.sections import Section
from agentrl.curriculum import CurriculumContext, Group, GroupPlan, Schedule
from agentrl.estimators import estimator
from agentrl.rewards import Scored, reward
from agentrl.rewards.functions.judges.client import Judge
from agentrl.rewards.functions.judges.grading import rubric_judge

RUBRIC = "1 if the answer is the same number as the reference, in whatever form it is written, else 0."


def sums(highest: int = 5) -> Iterator[Task]:
    """Sums of two numbers."""
    for a in range(1, highest + 1):
        for b in range(1, highest + 1):
            yield Task.of(f"{a}-{b}", f"What is {a} + {b}?", answer=str(a + b))


def checked(task: Task, episode: Episode) -> float:
    """The rule: the text of the answer, so that 7.0 is not 7."""
    return float((episode.answer or "").strip() == task.data["answer"])


@reward(costs=["engine"], required=False)
async def appeal(
    task: Task, episode: Episode, *, judge: Judge, rubric: str = RUBRIC, read_blob: Callable[[str], bytes]
) -> float | Scored | None:
    """Whether a model accepts an answer that the rule rejected; None for one that it accepted."""
    if checked(task, episode) or episode.answer is None:
        return None
    return await rubric_judge(task, episode, judge=judge, rubric=rubric, key="answer", scale=1.0, read_blob=read_blob)


def forward(task: Task, episode: Episode) -> float:
    """The forward correction: the rate of false negatives for an accepted answer, that less 1 for a rejected one."""
    return checked(task, episode) - 1.0 + float(task.data.get("false_negative", 0.0))


class Appeals(Schedule):
    """The rate of false negatives: accepted appeals, of these and the answers that the rule accepted.

    `memory` is the share of the counts that is kept from one iteration to the next.
    """

    class Settings(Section):
        memory: float = Field(0.9, ge=0, lt=1)

    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        data = {**group.task.data, "false_negative": self._rate()}
        return replace(group, task=msgspec.structs.replace(group.task, data=data))

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        episodes = [each for group in groups for each in group.episodes]
        for name, component in (("accepted", "checked"), ("appealed", "appeal")):
            found = sum((each.components.get(component) or 0.0) >= 0.5 for each in episodes)
            self.state[name] = self.settings.memory * self.state.get(name, 0.0) + found

    def metrics(self) -> dict[str, float]:
        return {"false_negative": self._rate()}

    def _rate(self) -> float:
        right = self.state.get("accepted", 0.0) + self.state.get("appealed", 0.0)
        return float(self.state.get("appealed", 0.0) / right) if right else 0.0


@estimator(granularity="trajectory", reads=["outcome"])
def score_function(table: Any) -> Any:
    """A_i = S_i: the score function, weighed by the reward, without a baseline."""
    return table.score[table.trajectory]


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """The right answer."""
    yield Say(f"<answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """The right answer, the right answer in another form, or a wrong one."""
    right = int(task.data["answer"])
    yield Say(f"<answer>{rng.choice([str(right), f'{right}.0', str(right + rng.randint(1, 3))])}</answer>")
