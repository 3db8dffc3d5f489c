"""What a curriculum is made of: three kinds of parts, and what they are told."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel

from agentrl.credit.registry import EpisodeCredit
from agentrl.curriculum.task_source import TaskSource
from agentrl.registry.settings import NoSettings
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError
from agentrl.types.task import Task


@dataclass(frozen=True)
class Context:
    """When a part is asked.

    Attributes:
        iteration: from 0.
        iterations: planned in all.
        rng: for this part and this question alone; the same again after a kill.
        episode: reads an earlier episode of the run.
    """

    iteration: int
    iterations: int
    rng: random.Random
    episode: Callable[[str], Episode]


@dataclass(frozen=True)
class GroupPlan:
    """A group to come: the task, the number of episodes, and how many turns each may take."""

    task: Task
    size: int
    max_turns: int


@dataclass(frozen=True)
class Group:
    """A group that was played; members that failed are absent.

    Attributes:
        episodes: the scored ones, by id.
        mean_abs_advantages: mean |advantage| over the turns of each episode that got credit.
    """

    id: str
    task: Task
    episodes: list[Episode]
    mean_abs_advantages: list[float] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        """Of the episodes, in their order."""
        return [episode.reward or 0.0 for episode in self.episodes]

    @property
    def mean_reward(self) -> float:
        """0 for a group that lost all its members."""
        return sum(self.rewards) / max(len(self.episodes), 1)

    def solved(self, success: float) -> int:
        """How many episodes reached the reward `success`."""
        return sum(reward >= success for reward in self.rewards)


@dataclass(frozen=True)
class CreditedEpisode:
    """An episode that trains, with its credit. Turns with an index in `masked_turns` do not train."""

    episode: Episode
    credit: EpisodeCredit
    masked_turns: frozenset[int] = frozenset()


class Part:
    """Base of all parts.

    Attributes:
        Settings: pydantic model of the part's settings.
        source: paper or code that the rule comes from.
        certainty: A: read in the authors' code; B: paper rule, confirmed by a second source; C: reconstructed.
        trains_older_episodes: whether episodes of earlier policies train again, which the recipe must correct for.
        state: JSON values; everything that the part remembers.
    """

    Settings: ClassVar[type[BaseModel]] = NoSettings
    source: ClassVar[str] = "user code"
    certainty: ClassVar[str] = ""
    trains_older_episodes: ClassVar[bool] = False
    name = ""
    settings: Any

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.state: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """What continues the part exactly, as JSON values."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` returned."""
        self.state = copy.deepcopy(state)

    def check(self, scripts: Collection[str]) -> None:
        """Raises RecipeError if the recipe lacks what the part needs. `scripts` are those that the recipe names."""

    def observe(self, groups: Sequence[Group], context: Context) -> None:
        """Is told at the end of an iteration of all its groups, before any filter, with their credit."""

    def metrics(self) -> dict[str, float]:
        """Numbers worth a curve."""
        return {}


class Sampler(Part, ABC):
    """Which tasks an iteration tries. A curriculum has one at most; without, tasks come in their order."""

    @abstractmethod
    def draw(self, tasks: TaskSource, count: int, context: Context) -> list[Task]:
        """`count` tasks; one may come twice."""


class Schedule(Part, ABC):
    """What changes over iterations: a group's task data, its size, its turns."""

    @abstractmethod
    def plan(self, group: GroupPlan, context: Context) -> GroupPlan:
        """The group as it is to be played."""


class Filter(Part):
    """Which episodes train."""

    def more(self, groups: Sequence[Group], wanted: int, rounds: int) -> int:
        """How many more groups the iteration needs, when `rounds` rounds were played and `wanted` were asked for."""
        return 0

    def select(self, groups: list[Group], wanted: int, context: Context) -> list[Group]:
        """Before credit: the groups, with the members, that baselines are taken over."""
        return groups

    def refine(self, credited: list[CreditedEpisode], context: Context) -> list[CreditedEpisode]:
        """After credit: what trains."""
        return credited

    def demonstrate(self) -> tuple[str, float, list[str]] | None:
        """After the update: (script, learning rate, ids of tasks) to play and imitate for one step; None: nothing."""
        return None


def data_of(task: Task, key: str, part: str) -> Any:
    """A field of a task's data that a part needs.

    Raises:
        TaskError: the task has none.
    """
    if key not in task.data:
        raise TaskError(
            f"task {task.id!r} has no data {key!r}, which the curriculum's {part!r} reads",
            remedy=f"Task.of(id, instruction, {key}=...); it has: {', '.join(task.data) or 'none'}",
        )
    return task.data[key]
