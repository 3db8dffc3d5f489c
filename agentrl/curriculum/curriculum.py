"""The curriculum of a run: its parts in the order of the recipe."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.tasks import CurriculumPart
from agentrl.curriculum.parts import (
    Correction,
    CreditedEpisode,
    CurriculumContext,
    Filter,
    Group,
    GroupPlan,
    Part,
    Sampler,
    Schedule,
)
from agentrl.curriculum.registry import load_part
from agentrl.curriculum.task_source import TaskSource
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Task


class Curriculum:
    """The parts of a curriculum, in the order of the recipe.

    Args:
        seed: the seed of the run.
        iterations: number of planned iterations.
        episode: reads an earlier episode of the run.
        of_stage: reads the training episodes of an earlier stage of the run.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        seed: int,
        iterations: int,
        episode: Callable[[str], Episode] | None = None,
        of_stage: Callable[[str], Iterable[Episode]] = lambda name: (),
    ) -> None:
        self.parts = list(parts)
        self.seed, self.iterations = seed, iterations
        self._episode, self._of_stage = episode or _no_past, of_stage
        samplers = [part for part in parts if isinstance(part, Sampler)]
        self.sampler = samplers[0] if samplers else None
        self.schedules = [part for part in parts if isinstance(part, Schedule)]
        self.filters = [part for part in parts if isinstance(part, Filter)]
        self.position = 0  # number of groups drawn so far from the endless order of tasks

    def draw(self, tasks: TaskSource, count: int, size: int, max_turns: int, iteration: int) -> list[GroupPlan]:
        """The next `count` groups, of `size` episodes unless a schedule changes that."""
        drawn: list[Task]
        if self.sampler is None:
            drawn = [tasks.at(self.position + index) for index in range(count)]
        else:
            drawn = self.sampler.draw(tasks, count, self._context(self.sampler, iteration, self.position))
        plans = [GroupPlan(task, size, max_turns) for task in drawn]
        for schedule in self.schedules:
            context = self._context(schedule, iteration, self.position)
            plans = [schedule.plan(plan, context) for plan in plans]
        self.position += count
        return plans

    def more(self, groups: Sequence[Group], wanted: int, rounds: int) -> int:
        """Number of further groups that the iteration needs."""
        return max((part.more(groups, wanted, rounds) for part in self.filters), default=0)

    def select(self, groups: list[Group], wanted: int, iteration: int) -> list[Group]:
        """Before credit: selects the groups and members that form baselines."""
        for part in self.filters:
            groups = part.select(groups, wanted, self._context(part, iteration))
        return groups

    def refine(self, credited: list[CreditedEpisode], iteration: int) -> list[CreditedEpisode]:
        """Selects the trained episodes and turns, after credit."""
        for part in self.filters:
            credited = part.refine(credited, self._context(part, iteration))
        return credited

    def corrections(self, iteration: int) -> Iterator[tuple[str, float, list[Correction]]]:
        """Yields the name of each filter that asks for a step on corrected turns, its learning rate, and the turns."""
        for part in self.filters:
            asked = part.correct(self._context(part, iteration))
            if asked is not None and asked[1]:
                yield part.name, *asked

    def observe(self, groups: Sequence[Group], iteration: int) -> dict[str, float]:
        """Reports the results of the iteration to every part. Returns their metrics."""
        metrics: dict[str, float] = {}
        for part in self.parts:
            part.observe(groups, self._context(part, iteration))
            metrics |= {f"{part.name}_{name}": value for name, value in part.metrics().items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for an exact resume, as JSON values."""
        return {"position": self.position, "parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a result of `state_dict`."""
        self.position = int(state["position"])
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)

    def _context(self, part: Part, iteration: int, *more: object) -> CurriculumContext:
        rng = random.Random(derive_seed(self.seed, "curriculum", self.parts.index(part), iteration, *more))
        return CurriculumContext(iteration, self.iterations, rng, self._episode, self._of_stage)


def load_parts(entries: Sequence[CurriculumPart], base: Path, scripts: Collection[str]) -> list[Part]:
    """Loads the parts of a recipe.

    Raises:
        RecipeError: a part or setting is unknown, a part lacks a requirement, or two samplers are given.
    """
    parts = []
    for index, entry in enumerate(entries):
        part = load_part(entry, base, f"curriculum.{index}")
        part.check(scripts)
        parts.append(part)
    samplers = [part.name for part in parts if isinstance(part, Sampler)]
    if len(samplers) > 1:
        raise RecipeError(f"two samplers: {' and '.join(samplers)}", place="curriculum", remedy="keep one of them")
    return parts


def _no_past(id: str) -> Episode:
    raise KeyError(id)
