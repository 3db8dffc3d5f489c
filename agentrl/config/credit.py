"""The sections `credit` and `information_gain` of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from agentrl.config.sections import Section, Short, named


class CreditSettings(Short):
    """The `credit` section: which estimator, and that estimator's own settings beside it.

    For example `{estimator: gigpo, gamma: 0.95, std: none}`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    estimator: str | SkipJsonSchema[Callable[..., Any]] = "grpo"

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings."""
        return named(value, "estimator")


class InformationGain(Section):
    """The gold answer is scored before every turn (teacher forcing), for credit by `igpo`."""

    answer: str = Field("answer", description="Where a task's data holds the gold answer, or a list of them.")
    at_most: int = Field(
        4,
        gt=0,
        description="Of a list, so many from the front are scored, each at the cost of one; the likeliest counts.",
    )
    lead: str = Field(
        "The answer is: ",
        description="What a reply says before it, not scored itself. Write it as the policy answers: <answer>.",
    )
