"""Steps that change a component's value before it is weighted: the recipe's `then`, applied in order.

right: {use: exact_match, then: [{backward: {false_positive: 0.1, false_negative: 0.2}}, {clip: [-1, 1]}]}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentrl.config.rewards import Noise, RewardStep
from agentrl.rewards.spans import Spanned
from agentrl.types.figures.sums import reaches

Value = float | None
Values = Value | list[Value]


def apply(steps: Sequence[RewardStep], value: Values) -> Values:
    """Applies `steps` in order. None (not scored) stays None."""
    for step in steps:
        value = _changed(step, value)
    return value


def _changed(step: RewardStep, value: Values) -> Values:
    """Applies one step to an outcome, or to every scored entry of a list over turns, or of spans.

    Raises:
        ValueError: `forward` of a value other than 0 and 1, or `process_delta` of an outcome or of spans.
    """
    ((name, setting),) = step.given.items()
    if name == "process_delta":
        if not isinstance(value, list):
            raise ValueError("process_delta takes a component that scores turns")
        if any(isinstance(item, Spanned) for item in value):
            raise ValueError("process_delta takes one number for each turn, and this component gives spans")
        return _delta(value) if setting else value

    def one(item: Value) -> Value:
        if isinstance(item, Spanned):
            return item.mapped(lambda each: _ONE[name](each, setting))
        return None if item is None else _ONE[name](item, setting)

    return [one(item) for item in value] if isinstance(value, list) else one(value)


def _forward(value: float, noise: Noise) -> float:
    if value not in (0.0, 1.0):
        raise ValueError(f"the forward correction takes 0 or 1, found {value}")
    return noise.false_negative - 1.0 + value


def _delta(values: list[Value]) -> list[Value]:
    out: list[Value] = list(values)
    following = 0.0
    for index in range(len(values) - 1, -1, -1):
        if (value := values[index]) is not None:
            out[index], following = value - following, value
    return out


_ONE: dict[str, Callable[[float, Any], float]] = {
    "normalise": lambda value, bounds: (value - bounds[0]) / (bounds[1] - bounds[0]),
    "clip": lambda value, bounds: min(max(value, bounds[0]), bounds[1]),
    "backward": lambda value, noise: (value - noise.false_positive) / (1 - noise.false_positive - noise.false_negative),
    "at_least": lambda value, least: float(reaches(value, least)),
    "forward": _forward,
    "process_clip": lambda value, eta: min(value - eta, 0.0),
}
