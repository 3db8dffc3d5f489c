"""The sections `credit` and `information_gain` of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from agentrl.config.sections import PlugIn, Section


class CreditSettings(PlugIn):
    """The `credit` section: which estimator, and that estimator's own settings beside it.

    For example `{use: gigpo, gamma: 0.95, std: none}`.
    """

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "grpo", description="An estimator (agentrl list estimators), or ./task.py:mine."
    )


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
