"""A loss with its description. Does not import torch, so that recipes can be checked without it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel

from agentrl.config.train import Aggregation, Anchor, TrainSettings
from agentrl.registry.settings import NoSettings
from agentrl.training.backend import Column

Scope = Literal["token", "step", "group"]
"""Tokens that a loss needs at once: one token; all of an optimiser step; all of a step with whole groups."""

Need = Literal["reference", "teacher", "ema_reference", "entropy"]
"""A column of `TokenBatch` beyond those that every loss gets: log-probabilities under another policy, or entropies."""

COLUMN_OF: dict[Need, Column] = {
    "reference": "ref_logprob",
    "teacher": "teacher_logprob",
    "ema_reference": "ema_logprob",
    "entropy": "entropy",
}
"""The column of each need."""

ANCHORS = get_args(Anchor)


@dataclass(frozen=True)
class Loss:
    """A policy loss with its description.

    Attributes:
        function: `(TokenBatch, settings) -> (loss per token [n], True if clipping removed its gradient [n, bool])`, or
            its `module:name`.
        settings: the pydantic model of the settings.
        formula: one line, for display.
        source: the paper or code of the formula.
        scope: tokens needed at once. Losses of scope `step` and `group` may use any token of the step; if the
            step does not fit one pack, the trainer makes one more forward pass.
        aggregation: the aggregation if `train.aggregation` is null.
        needs: what the loss reads beyond the columns that every loss gets. reference: `TokenBatch.ref_logprob`, of the
            policy at the start of the stage; teacher: `teacher_logprob`, of the model `train.teacher`; ema_reference:
            `ema_logprob`, of the moving average `train.ema_reference`; entropy: `entropy`, of the trained policy, with
            its gradient.
    """

    name: str
    function: str | Callable[..., Any]
    settings: type[BaseModel] = NoSettings
    formula: str = ""
    source: str = "user code"
    scope: Scope = "step"
    aggregation: Aggregation = "token_mean"
    needs: Sequence[Need] = ()

    def __call__(self, *batch: Any) -> Any:
        """Calls the function. A recipe written in Python may use a loss wherever it may use a function."""
        return self.resolve()(*batch)

    def resolve(self) -> Callable[..., Any]:
        """The function. For a built-in loss this imports torch."""
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.code.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function

    @property
    def code(self) -> str:
        """The location of the function, `module:name`."""
        if isinstance(self.function, str):
            return f"agentrl.training.losses.{self.function}"
        return f"{self.function.__module__}:{self.function.__name__}"


@dataclass(frozen=True)
class PreferenceLoss(Loss):
    """A loss on episodes with a label: good (reward 1) or bad (reward 0). A group is a pair; every token of an episode
    carries the loss of its pair or episode.

    Attributes:
        paired: whether every group must consist of one good and one bad episode.
        baseline: whether the loss uses the divergence of policy and reference on mismatched episodes (in `advantage`).
        gold: whether a group has a third episode, to be imitated (reward 2).
    """

    needs: Sequence[Need] = ("reference",)
    paired: bool = True
    baseline: bool = False
    gold: bool = False


def read_by(loss: Loss, settings: TrainSettings) -> dict[Need, str]:
    """Returns the columns that the loss, KL and the entropy bonus read, each with the key that asks for it."""
    found: dict[Need, str] = dict.fromkeys(loss.needs, "train.loss")
    if settings.kl is not None:
        found.setdefault(settings.kl.to, "train.kl")
    if settings.entropy_bonus:
        found.setdefault("entropy", "train.entropy_bonus")
    return found
