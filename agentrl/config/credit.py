"""The sections `credit`, `information_gain` and `hindsight` of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from agentrl.config.sections import PlugIn, Section


class CreditSettings(PlugIn):
    """The `credit` section: the estimator and its settings.

    For example `{use: gigpo, gamma: 0.95, std: none}`.
    """

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "grpo", description="An estimator (agentrl list estimators), or ./task.py:mine."
    )


class InformationGain(Section):
    """Scores the gold answer before every turn (teacher forcing), for the estimator `igpo`."""

    answer: str = Field("answer", description="Key of the task's data that holds the gold answer or a list of them.")
    at_most: int = Field(
        4,
        gt=0,
        description="Maximum number of gold answers that are scored, from the front of the list; the most likely one "
        "counts. Each costs one scoring.",
    )
    lead: str = Field(
        "The answer is: ",
        description="Text in front of the gold answer, which is not scored. Write it as the policy does: <answer>.",
    )


class Hindsight(Section):
    """Scores every turn of the policy again once the outcome is known (teacher forcing), for the estimator `hcapo`."""

    note: str = Field(
        "In hindsight, it ends like this: {outcome}",
        description="Message in front of the turn that is scored. {outcome} is the answer of the episode, else its "
        "last observation.",
    )
    outcome_tokens: int = Field(
        64,
        gt=0,
        description="Maximum number of tokens of {outcome}; the rest is cut. Every prompt leaves room for them.",
    )
