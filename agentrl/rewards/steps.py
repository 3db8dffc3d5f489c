"""Steps that change a component's value before it is weighted: the recipe's `then`, applied in order.

right: {use: exact_match, then: [{backward: {false_positive: 0.1, false_negative: 0.2}}, {clip: [-1, 1]}]}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Value = float | None
Values = Value | list[Value]


class Noise(BaseModel):
    """Error rates of a verifier of right (1) and wrong (0).

    Attributes:
        false_positive: rho0 = P(accepted | wrong).
        false_negative: rho1 = P(rejected | right).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    false_positive: float = Field(0.0, ge=0, lt=1)
    false_negative: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _informative(self) -> Self:
        if self.false_positive + self.false_negative >= 1:
            raise ValueError("a verifier whose error rates sum to 1 or more says nothing")
        return self


class Step(BaseModel):
    """One step; exactly one key.

    Noise corrections: arXiv:2510.00915. `backward` gives an unbiased reward (R - rho0) / (1 - rho0 - rho1); it is a
    shift and a scale, so an estimator that subtracts the mean and divides by the standard deviation undoes it.
    `forward` replaces the reward by the weight rho1 if accepted, rho1 - 1 if rejected: its expectation is 0 for right
    answers and -(1 - rho0 - rho1) for wrong ones, and it needs rho1 alone.

    Process scores p_k of turn components: arXiv:2410.15115. `process_clip` gives min(p_k - eta, 0); `process_delta`
    gives p_k - p_{k+1}, and p_k at the last scored turn, so that the undiscounted sum from k on is p_k and cannot grow
    with the number of turns.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    normalise: tuple[float, float] | None = Field(None, description="[low, high] is mapped to [0, 1].")
    clip: tuple[float, float] | None = Field(None, description="Values below low or above high become low or high.")
    backward: Noise | None = Field(None, description="Backward correction of a noisy verifier.")
    forward: Noise | None = Field(None, description="Forward correction of a noisy verifier (of 0 and 1).")
    process_clip: float | None = Field(None, description="eta of min(p - eta, 0).")
    process_delta: bool | None = Field(None, description="true: p_k - p_{k+1} over the turns.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.given) != 1:
            raise ValueError(f"a step has exactly one of: {', '.join(type(self).model_fields)}")
        for key in ("normalise", "clip"):
            bounds = getattr(self, key)
            if bounds is not None and not bounds[0] < bounds[1]:
                raise ValueError(f"{key} takes [low, high] with low < high")
        return self

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}

    def __call__(self, value: Values) -> Values:
        """Applies it to an outcome, or to every scored entry of a list over turns.

        Raises:
            ValueError: `forward` of neither 0 nor 1, or `process_delta` of an outcome.
        """
        ((name, setting),) = self.given.items()
        if name == "process_delta":
            if not isinstance(value, list):
                raise ValueError("process_delta takes a component that scores turns")
            return _delta(value) if setting else value
        one = _ONE[name]
        if isinstance(value, list):
            return [None if item is None else one(item, setting) for item in value]
        return None if value is None else one(value, setting)


def apply(steps: Sequence[Step], value: Values) -> Values:
    """`steps` in order. None stays None: what was never scored cannot be changed."""
    for step in steps:
        value = step(value)
    return value


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
    "forward": _forward,
    "process_clip": lambda value, eta: min(value - eta, 0.0),
}
