"""MoDoMoDo: the weights of sources are chosen by a model that predicts the outcome of a mixture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.methods.sources import SourceSampler
from agentrl.curriculum.parts import CurriculumContext, Group
from agentrl.curriculum.task_source import TaskSource
from agentrl.types.task import Task

RIDGE = 1e-3


class MixtureSettings(Section):
    """`key`: field of the task's data that names its source; dots lead inside. `pilots`: the mixtures to try first;
    null: all alike, and half of the weight to each source in turn. `every`: iterations of a pilot. `parts`: the chosen
    weights are multiples of 1 / `parts`."""

    key: str = "source"
    pilots: list[dict[str, float]] | None = None
    every: int = Field(10, gt=1)
    parts: int = Field(10, gt=1)


class Mixture(SourceSampler):
    """Tries each pilot mixture for `every` iterations, then draws by the mixture of the highest predicted outcome.

    The outcome of a pilot is the gain in mean reward from the first to the second half of its iterations, a mean over
    the sources. It is predicted by a ridge regression on the weights and their squares. The paper trains a model for
    each pilot from the same start and evaluates it on other data; here pilots follow each other in one training.
    """

    Settings = MixtureSettings
    source = "MoDoMoDo, arXiv:2505.24871"
    certainty = "C"

    def draw(self, tasks: TaskSource, count: int, context: CurriculumContext) -> list[Task]:
        self.state["iteration"] = context.iteration
        return super().draw(tasks, count, context)

    def weights(self, sources: Sequence[str]) -> list[float]:
        pilots, at = self._pilots(sources), self.state.get("iteration", 0) // self.settings.every
        self.state["sources"] = list(sources)
        if at < len(pilots):
            chosen = pilots[at]
        else:
            if "chosen" not in self.state:
                outcomes = [self._outcome(str(pilot), sources) for pilot in range(len(pilots))]
                self.state["chosen"] = best_mixture(pilots, outcomes, self.settings.parts)
            chosen = self.state["chosen"]
        self.state["weights"] = chosen
        return chosen

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        pilot, step = divmod(context.iteration, self.settings.every)
        halves = self.state.setdefault("seen", {}).setdefault(str(pilot), [{}, {}])
        for group in groups:
            if group.episodes:
                seen = halves[2 * step >= self.settings.every]
                seen.setdefault(self.source_of(group.task), []).append(group.mean_reward)

    def metrics(self) -> dict[str, float]:
        named = zip(self.state.get("sources", ()), self.state.get("weights", ()), strict=True)
        return {f"weight/{name}": float(weight) for name, weight in named}

    def _pilots(self, sources: Sequence[str]) -> list[list[float]]:
        count, given = len(sources), self.settings.pilots
        if given is not None:
            return [[each.get(name, 0.0) / sum(each.values()) for name in sources] for each in given]
        rest = 0.5 / max(count - 1, 1)
        return [[1 / count] * count, *([0.5 if k == own else rest for k in range(count)] for own in range(count))]

    def _outcome(self, pilot: str, sources: Sequence[str]) -> float:
        first, second = self.state.get("seen", {}).get(pilot, [{}, {}])
        both = [name for name in sources if first.get(name) and second.get(name)]
        return sum(float(np.mean(second[name]) - np.mean(first[name])) for name in both) / len(sources)


def best_mixture(pilots: Sequence[Sequence[float]], outcomes: Sequence[float], parts: int) -> list[float]:
    """The mixture, of multiples of 1 / `parts`, with the highest predicted outcome."""
    features = np.array([_features(each) for each in pilots])
    mean = float(np.mean(outcomes))
    square = features @ features.T + RIDGE * np.eye(len(features))
    coefficients = features.T @ np.linalg.solve(square, np.array(outcomes) - mean)
    return max(_simplex(len(pilots[0]), parts), key=lambda mixture: float(_features(mixture) @ coefficients))


def _features(mixture: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = np.array(mixture, dtype=np.float64)
    return np.concatenate([weights, weights**2])


def _simplex(count: int, parts: int) -> Iterator[list[float]]:
    """Yields all mixtures of `count` sources."""
    for bars in itertools.combinations(range(parts + count - 1), count - 1):
        ends = [-1, *bars, parts + count - 1]
        yield [(b - a - 1) / parts for a, b in itertools.pairwise(ends)]
