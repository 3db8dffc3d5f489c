"""Checks that the scores of a recipe lie in [0, 1], which some estimators need."""

from __future__ import annotations

import math

from agentrl.config.rewards import RewardStep
from agentrl.estimators.registry import CreditAssigner
from agentrl.rewards.components import Component
from agentrl.rewards.steps import apply
from agentrl.rollouts.builder import Parts
from agentrl.types.errors import CreditError

Bounds = tuple[float, float]

_UNKNOWN = (-math.inf, math.inf)


def check_bounds(parts: Parts) -> None:
    """Checks the known bounds of the scores before the first episode.

    Raises:
        CreditError: the estimator takes scores in [0, 1], and those of the recipe may exceed it.
    """
    credit, scoring = parts.credit, _scoring(parts)
    known = [bounds for each in scoring if (bounds := _of(each)) != _UNKNOWN]
    for each in scoring:
        low, high = _of(each)
        if (low, high) != _UNKNOWN and (low < 0 or high > 1):
            raise _outside(credit, f"{each.name} may be {_told(low, high)}", f"rewards.{each.name}")
    if parts.rewards.route is None and (most := sum(high for _, high in known)) > 1:
        names = " + ".join(each.name for each in scoring if _of(each) != _UNKNOWN)
        raise _outside(credit, f"{names} may be {most:g}", "rewards")


def unknown_bounds(parts: Parts) -> list[str]:
    """Returns the components with unknown bounds, if the estimator takes scores in [0, 1]."""
    return [each.name for each in _scoring(parts) if _of(each) == _UNKNOWN]


def _scoring(parts: Parts) -> list[Component]:
    """Returns the components that the scores sum up, if the estimator takes only scores in [0, 1]."""
    credit = parts.credit
    if not credit.estimator.in_unit:
        return []
    turns = bool((credit.reads or frozenset()) & {"turns"})
    return [each for each in parts.rewards.components if each.weight and (turns or not each.per_turn)]


def _of(component: Component) -> Bounds:
    """Returns the bounds of its share of the score; `_UNKNOWN` if a bound or the number of turns is unknown."""
    known = None if component.per_turn else component.about.bounds
    for step in component.steps:
        if step.clip is not None and not component.per_turn:
            low, high = known or _UNKNOWN
            known = max(low, step.clip[0]), min(high, step.clip[1])
        elif step.forward is not None:
            known = step.forward.false_negative - 1, step.forward.false_negative
        elif known is not None:
            known = _after(step, known[0]), _after(step, known[1])
    if known is None or component.per_turn:
        return _UNKNOWN
    ends = [component.weight * end for end in known]
    return min(ends), max(ends)


def _after(step: RewardStep, value: float) -> float:
    changed = apply([step], value)
    assert isinstance(changed, float)
    return changed


def _told(low: float, high: float) -> str:
    return f"{low:g}" if low < 0 else f"{high:g}"


def _outside(credit: CreditAssigner, why: str, place: str) -> CreditError:
    return CreditError(
        f"{credit.estimator.name} takes scores in [0, 1], and {why}",
        place=place,
        remedy="give it other weights, or steps (then: [{normalise: [LOW, HIGH]}, {clip: [0, 1]}]), or take another "
        "estimator (grpo, rloo)",
    )
