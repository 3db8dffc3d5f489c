"""The sections `rewards`, `reward_of` and `gate` of a recipe."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from agentrl.config.sections import PlugIn, Section, Short, alone


class Noise(Section):
    """Error rates of a binary verifier (1: right, 0: wrong).

    Attributes:
        false_positive: rho0 = P(accepted | wrong).
        false_negative: rho1 = P(rejected | right).
    """

    false_positive: float = Field(0.0, ge=0, lt=1)
    false_negative: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _informative(self) -> Self:
        if self.false_positive + self.false_negative >= 1:
            raise ValueError("a verifier whose error rates sum to 1 or more carries no information")
        return self


class RewardStep(Section):
    """One step that transforms a reward; exactly one key.

    Noise corrections: arXiv:2510.00915. `backward` gives an unbiased reward (R - rho0) / (1 - rho0 - rho1); it is a
    shift and a scale, so an estimator that subtracts the mean and divides by the standard deviation undoes it.
    `forward` replaces the reward by the weight rho1 if accepted, rho1 - 1 if rejected: its expectation is 0 for right
    answers and -(1 - rho0 - rho1) for wrong ones, and it needs rho1 alone.

    Process scores p_k of turn components: arXiv:2410.15115. `process_clip` gives min(p_k - eta, 0); `process_delta`
    gives p_k - p_{k+1}, and p_k at the last scored turn, so that the undiscounted sum from k on is p_k and cannot grow
    with the number of turns.
    """

    normalise: tuple[float, float] | None = Field(None, description="Map [low, high] to [0, 1].")
    clip: tuple[float, float] | None = Field(None, description="Clip values to [low, high].")
    backward: Noise | None = Field(None, description="Backward correction for a noisy verifier.")
    at_least: float | None = Field(None, allow_inf_nan=False, description="1 if the value is at least this, else 0.")
    forward: Noise | None = Field(None, description="Forward correction for a noisy binary verifier.")
    process_clip: float | None = Field(None, description="eta in min(p - eta, 0).")
    process_delta: bool | None = Field(None, description="true: replace p_k by p_k - p_{k+1} over the turns.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.given) != 1:
            raise ValueError(f"a step needs exactly one of: {', '.join(type(self).model_fields)}")
        for key in ("normalise", "clip"):
            bounds = getattr(self, key)
            if bounds is not None and not bounds[0] < bounds[1]:
                raise ValueError(f"{key} needs [low, high] with low < high")
        return self

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


class RewardSettings(PlugIn):
    """One reward component. Other keys are the component's own settings."""

    use: str | None = Field(None, description="A reward function; default: the built-in with the component's name.")
    weight: float = Field(1.0, description="Weight in the sum; with 0 the value is recorded but does not count.")
    required: bool | None = Field(
        None, description="true: an episode without this value is not scored; default: true for judges, else false."
    )
    accept_forgery: bool = Field(False, description="true: train on a reward that the policy could forge.")
    worst: float = Field(
        0.0,
        allow_inf_nan=False,
        description="The value if the agent prevents the scoring, for example by breaking its sandbox; of a penalty, "
        "give the lowest.",
    )
    then: list[RewardStep] = Field([], description="Steps that transform the value, in order: normalise, clip, ...")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A string is the function; null is the built-in with the component's name."""
        return {} if value is None else alone(value, "use")

    @property
    def spec(self) -> dict[str, Any]:
        """The settings in the form that `RewardSet.from_recipe` takes."""
        named = {
            "use": self.use,
            "weight": self.weight,
            "required": self.required,
            "then": self.then,
            "worst": self.worst,
        }
        return {**self.settings, **named, "accept_forgery": self.accept_forgery}


class RewardRoute(Section, Short):
    """Selects the components that score a task by a field of its data."""

    field: str = Field(description="The field of task.data that names one component, or a list of them.")
    always: list[str] = Field([], description="Components that score every task.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name alone is the field."""
        return alone(value, "field")


class Gate(Section):
    """One entry of the recipe's `gate`: exactly one of `at_least` and `above`."""

    on: str = Field(description="The component that opens the gate; a turn component counts with its sum over turns.")
    at_least: float | None = Field(None, description="The gate is open if the component is >= this.")
    above: float | None = Field(None, description="The gate is open if the component is > this.")
    shuts: list[str] | None = Field(
        None, description="Components that it closes; default: all that neither this gate nor one before it is on."
    )

    @model_validator(mode="after")
    def _one_threshold(self) -> Gate:
        if (self.at_least is None) == (self.above is None):
            raise ValueError("give exactly one of 'at_least' and 'above'")
        return self
