"""RECAP: the weight of each source of tasks follows how its rewards converge and how much they move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from pydantic import Field

from agentrl.config.sections import Section
from agentrl.curriculum.methods.sources import softmax
from agentrl.curriculum.parts import CreditedEpisode, CurriculumContext, Filter, Group, data_of
from agentrl.types.task import Task


class RecapSettings(Section):
    """`key`: field of the task's data that names its source; dots lead inside. `window`: iterations that count.
    `temperature` of the softmax."""

    key: str = "source"
    window: int = Field(8, gt=1)
    temperature: float = Field(1.0, gt=0)


class Recap(Filter):
    """Credit of source k is multiplied by K softmax((c + i) / temperature)_k over the K sources.

    c = (1 - m) / (1 - mean of the window), how far the reward m of the last iteration is from 1 against the window: at
    least 1 where it does not improve any more, less where it converges; 0 where it is saturated. i = std / mean of the
    window, the instability. A source that has not been tried twice has the factor 1. The paper replays general tasks
    together with those of reasoning: list both as sources.
    """

    Settings = RecapSettings
    source = "arXiv:2510.21978 (abstract)"
    certainty = "C"

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        now: dict[str, list[float]] = {}
        for group in groups:
            now.setdefault(self._source(group.task), []).extend(group.rewards)
        for name, rewards in now.items():
            if rewards:
                past = [*self.state.get(name, []), sum(rewards) / len(rewards)]
                self.state[name] = past[-self.settings.window :]

    def refine(self, credited: list[CreditedEpisode], context: CurriculumContext) -> list[CreditedEpisode]:
        weights = self.weights()
        return [_scaled(each, weights.get(self._source(each.episode.task), 1.0)) for each in credited]

    def weights(self) -> dict[str, float]:
        """The factor of each source that has been tried twice."""
        scores = {name: _priority(past) for name, past in sorted(self.state.items()) if len(past) > 1}
        if not scores:
            return {}
        shares = softmax([*scores.values()], self.settings.temperature)
        return {name: len(scores) * share for name, share in zip(scores, shares, strict=True)}

    def metrics(self) -> dict[str, float]:
        return {f"weight/{name}": value for name, value in self.weights().items()}

    def _source(self, task: Task) -> str:
        return str(data_of(task, self.settings.key, self.name))


def _priority(past: Sequence[float]) -> float:
    mean = sum(past) / len(past)
    spread = math.sqrt(sum((value - mean) ** 2 for value in past) / len(past))
    left = 1 - mean
    convergence = max(0.0, 1 - past[-1]) / left if left > 1e-6 else 0.0
    return convergence + (spread / mean if mean > 1e-6 else 0.0)


def _scaled(each: CreditedEpisode, weight: float) -> CreditedEpisode:
    credit = each.credit
    tokens = credit.token_advantages
    return replace(
        each,
        credit=msgspec.structs.replace(
            credit,
            turn_advantages=[weight * value for value in credit.turn_advantages],
            token_advantages=None if tokens is None else [weight * value for value in tokens],
        ),
    )
