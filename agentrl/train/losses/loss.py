"""What is known about a loss. Free of torch: a recipe is checked without it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from agentrl.config.train import Aggregation
from agentrl.registry.settings import NoSettings

Scope = Literal["token", "step", "group"]
"""What a loss must see at once: a token; all tokens of an optimiser step; and with them whole groups."""


@dataclass(frozen=True)
class Loss:
    """A policy loss with what is known about it.

    Attributes:
        function: `(TokenBatch, settings) -> (loss of each token [n], where clipping took its gradient [n, bool])`, or
            `module:name` of one.
        settings: pydantic model of its settings.
        formula: one line for people.
        source: paper or code that the formula comes from.
        scope: what it must see at once. Losses of scope `step` and `group` may use any token of the step; the trainer
            then makes one more forward pass when the step does not fit one pack.
        aggregation: what `train.aggregation: null` means.
    """

    name: str
    function: str | Callable[..., Any]
    settings: type[BaseModel] = NoSettings
    formula: str = ""
    source: str = "user code"
    scope: Scope = "step"
    aggregation: Aggregation = "token_mean"

    def __call__(self, *batch: Any) -> Any:
        """What the function returns. A recipe written in Python may give a loss where it may give a function."""
        return self.resolve()(*batch)

    def resolve(self) -> Callable[..., Any]:
        """The function; imports torch for the built-in ones."""
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.code.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function

    @property
    def code(self) -> str:
        """Where the function is, `module:name`."""
        if isinstance(self.function, str):
            return f"agentrl.train.losses.{self.function}"
        return f"{self.function.__module__}:{self.function.__name__}"


@dataclass(frozen=True)
class PreferenceLoss(Loss):
    """A loss of episodes that are labelled good (reward 1) or bad (0). A group is a pair; every token of an episode
    carries the loss of its pair, or of the episode.

    Attributes:
        reference: whether it reads the policy that the stage began with.
        paired: whether every group must be a good and a bad episode.
        baseline: whether it reads how far policy and reference are apart on mismatched episodes (`advantage`).
    """

    reference: bool = True
    paired: bool = True
    baseline: bool = False
