"""The three kinds of parts of a curriculum, and their inputs."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel

from agentrl.config.sections import Section
from agentrl.curriculum.task_source import TaskSource
from agentrl.estimators.registry import EpisodeCredit
from agentrl.registry.settings import NoSettings
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError
from agentrl.types.figures.of_episodes import SUCCESS, figure, succeeded
from agentrl.types.figures.sums import total
from agentrl.types.task import Task


@dataclass(frozen=True)
class CurriculumContext:
    """The context of a call of a part.

    Attributes:
        iteration: index of the iteration, from 0.
        iterations: number of planned iterations.
        rng: a generator for this part and this call, with the same seed after a kill.
        episode: reads an earlier episode of the run.
        of_stage: reads the training episodes of an earlier stage of the run, by its name.
    """

    iteration: int
    iterations: int
    rng: random.Random
    episode: Callable[[str], Episode]
    of_stage: Callable[[str], Iterable[Episode]] = lambda name: ()


@dataclass(frozen=True)
class GroupPlan:
    """A planned group: the task, the number of episodes, their maximum number of turns, and the temperature that their
    replies are sampled at (None: the recipe's)."""

    task: Task
    size: int
    max_turns: int
    temperature: float | None = None


@dataclass(frozen=True)
class Group:
    """A played group, without failed members.

    Attributes:
        episodes: the scored episodes, by id.
        mean_abs_advantages: mean |advantage| over the turns of each episode that got credit.
    """

    id: str
    task: Task
    episodes: list[Episode]
    mean_abs_advantages: list[float] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        """The rewards of the episodes, in order."""
        return [episode.reward or 0.0 for episode in self.episodes]

    @property
    def mean_reward(self) -> float:
        """The mean reward; 0 for a group without members."""
        return total(self.rewards) / max(len(self.episodes), 1)

    def mean(self, metric: str) -> float:
        """The mean of a figure (`types.figures.figure`) over the episodes that have it; 0 if none has."""
        known = [value for episode in self.episodes if (value := figure(episode, metric)) is not None]
        return total(known) / max(len(known), 1)

    def solved(self, success: float = 1.0, metric: str = SUCCESS) -> int:
        """Number of episodes with `metric` at least `success`."""
        return sum(succeeded(episode, metric, success) for episode in self.episodes)


class Solving(Section):
    """Settings of a part that counts solved episodes.

    Attributes:
        metric: the compared value: `success` (as defined by the recipe), `reward` (the outcome), `total` (the outcome
            and the turn rewards), or a component before its weight.
        success: the value from which an episode is solved.
    """

    metric: str = SUCCESS
    success: float = 1.0

    def solves(self, episode: Episode) -> bool:
        """Returns True if an episode is solved."""
        return succeeded(episode, self.metric, self.success)

    def solved(self, group: Group) -> int:
        """Number of solved episodes."""
        return group.solved(self.success, self.metric)


@dataclass(frozen=True)
class CreditedEpisode:
    """An episode that trains, with its credit. Turns with an index in `masked_turns` do not train."""

    episode: Episode
    credit: EpisodeCredit
    masked_turns: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Correction:
    """A turn of a played episode, with the text that it should have had."""

    episode: Episode
    turn: int
    text: str


class Part:
    """The base class of all parts.

    Attributes:
        Settings: pydantic model of the part's settings.
        source: the paper or code of the rule.
        certainty: A: read in the authors' code; B: paper rule, confirmed by a second source; C: reconstructed.
        trains_older_episodes: whether episodes of earlier policies train again, which the recipe must correct for.
        sets_temperature: whether it plans the temperature of groups.
        state: the state of the part, as JSON values.
    """

    Settings: ClassVar[type[BaseModel]] = NoSettings
    source: ClassVar[str] = "user code"
    certainty: ClassVar[str] = ""
    trains_older_episodes: ClassVar[bool] = False
    sets_temperature: ClassVar[bool] = False
    name = ""
    settings: Any

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.state: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for an exact resume, as JSON values."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a result of `state_dict`."""
        self.state = copy.deepcopy(state)

    def check(self, scripts: Collection[str]) -> None:
        """Raises RecipeError if the recipe lacks a requirement of the part. `scripts`: the scripts of the recipe."""

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        """Receives all groups of an iteration at its end, unfiltered, with their credit."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the part."""
        return {}


class Sampler(Part, ABC):
    """Selects the tasks of an iteration. A curriculum has at most one sampler; without one, tasks come in order."""

    @abstractmethod
    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        """`count` tasks; a task may occur twice."""


class Schedule(Part, ABC):
    """Changes planned groups over iterations: task data, size, number of turns."""

    @abstractmethod
    def plan(self, group: GroupPlan, context: CurriculumContext) -> GroupPlan:
        """The group with its changes."""


class Filter(Part):
    """Selects the episodes that train."""

    def more(self, groups: Sequence[Group], wanted: int, rounds: int) -> int:
        """Number of further groups that the iteration needs, after `rounds` rounds, to have `wanted` groups."""
        return 0

    def select(self, groups: list[Group], wanted: int, context: CurriculumContext) -> list[Group]:
        """Before credit: selects the groups, with their members, that form baselines."""
        return groups

    def refine(self, credited: list[CreditedEpisode], context: CurriculumContext) -> list[CreditedEpisode]:
        """Selects the trained episodes and turns, after credit."""
        return credited

    def demonstrate(self) -> tuple[str, float, list[str]] | None:
        """After the update: (script, learning rate, ids of tasks) to play and imitate for one step; None: nothing."""
        return None

    def correct(self, context: CurriculumContext) -> tuple[float, list[Correction]] | None:
        """After the update: (learning rate, corrected turns) to imitate for one step; None: nothing."""
        return None


def data_of(task: Task, key: str, part: str) -> Any:
    """A field of a task's data that a part needs; dots lead inside (`game.kwargs.level`).

    Raises:
        TaskError: the task lacks the field.
    """
    found: Any = task.data
    for step in [key] if key in task.data else key.split("."):
        if not isinstance(found, Mapping) or step not in found:
            raise TaskError(
                f"task {task.id!r} has no data {key!r}, which the curriculum's {part!r} reads",
                remedy=f"Task.of(id, instruction, {key}=...); it has: {', '.join(task.data) or 'none'}",
            )
        found = found[step]
    return found
