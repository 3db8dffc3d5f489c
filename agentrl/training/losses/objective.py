"""The objective of an optimiser step: the policy loss with importance weights, plus KL to another policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from agentrl.config.train import Aggregation, ImportanceSettings, KlSettings, LossSettings, TrainSettings
from agentrl.training.losses.batch import MAX_LOG_RATIO, TokenBatch, mean_by, sum_by
from agentrl.training.losses.loss import Need, Scope
from agentrl.training.losses.registry import load_loss

MAX_K3 = 10.0
"""k3 is clamped to +- this value, as in verl."""


@dataclass(frozen=True)
class Objective:
    """A loss with its settings and all additional terms.

    Attributes:
        loss: `(batch) -> (loss per token [n], True if clipping removed its gradient [n])`.
        scope: the tokens that the loss needs at once.
        needs: what the loss or KL reads beyond the columns that every loss gets.
    """

    loss: Callable[[TokenBatch], tuple[Tensor, Tensor]]
    scope: Scope
    aggregation: Aggregation
    kl: KlSettings | None = None
    importance: ImportanceSettings | None = None
    needs: frozenset[Need] = frozenset()

    @classmethod
    def of(cls, settings: TrainSettings, base: Path = Path()) -> Objective:
        """The objective of the settings.

        Raises:
            TrainError: the loss or one of its settings is unknown.
        """
        loss, own = load_loss(settings.loss, base)
        function = loss.resolve()
        kl = settings.kl if settings.kl is not None and settings.kl.place == "loss" else None
        importance = settings.importance
        scope: Scope = loss.scope
        if scope == "token" and importance is not None and importance.level != "token":
            scope = "step"
        return cls(
            lambda batch: function(batch, own),
            scope,
            settings.aggregation or loss.aggregation,
            kl,
            importance,
            frozenset([*loss.needs, *([] if kl is None else [kl.to])]),
        )

    @classmethod
    def alone(cls, settings: LossSettings, base: Path = Path()) -> Objective:
        """The objective of a loss alone, without importance weights and KL.

        Raises:
            TrainError: the loss or one of its settings is unknown.
        """
        loss, own = load_loss(settings, base)
        function = loss.resolve()
        return cls(lambda batch: function(batch, own), loss.scope, loss.aggregation, needs=frozenset(loss.needs))

    def at(self, progress: float) -> Objective:
        """The objective after a share of the training: the weight of KL may change."""
        return self if self.kl is None else replace(self, kl=self.kl.at(progress))

    def __call__(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """The loss per token [n], and whether clipping removed its gradient [n]."""
        per_token, clipped = self.loss(batch)
        if self.importance is not None:
            per_token = per_token * importance_weight(batch, self.importance)
        if self.kl is not None:
            per_token = per_token + self.kl.coef * kl_loss(batch, self.kl)
        return per_token, clipped


def importance_weight(batch: TokenBatch, settings: ImportanceSettings) -> Tensor:
    """Bounded ratio of old policy to behaviour policy [n], without gradient.

    `truncate` is TIS (Yao et al., 2025), `mask` is IcePop (Ling team, 2025), and `geometric` with `mask` rejects whole
    sequences by their mean log-ratio.
    """
    log_ratio = (batch.old_logprob - batch.behaviour_logprob).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if settings.level == "sequence":
        log_ratio = sum_by(log_ratio, batch.episode)[batch.episode].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    elif settings.level == "geometric":
        log_ratio = mean_by(log_ratio, batch.episode)[batch.episode]
    ratio = log_ratio.exp()
    if settings.mode == "truncate":
        return ratio.clamp(max=settings.high)
    kept = (ratio <= settings.high) & (ratio >= (settings.low or 0.0))
    return torch.where(kept, ratio, 0.0)


def kl_loss(batch: TokenBatch, settings: KlSettings) -> Tensor:
    """The KL term per token [n], with the gradient that the settings select."""
    difference = batch.log_ratio_to(settings.to)
    value = kl_estimate(difference, settings.estimator.rstrip("+"))
    if settings.unbiased:
        return batch.log_ratio.exp() * value
    if settings.estimator.endswith("+"):
        gradient = kl_estimate(difference, "k2")
        return gradient - gradient.detach() + value.detach()
    return value


def kl_estimate(difference: Tensor, estimator: str) -> Tensor:
    """k1, k2, k3 or abs of d = log(policy / reference) (Schulman, "Approximating KL divergence", 2020) [n]."""
    if estimator == "k3":
        log_ratio = (-difference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return (log_ratio.exp() - log_ratio - 1).clamp(-MAX_K3, MAX_K3)
    return {"k1": difference, "k2": difference.square() / 2, "abs": difference.abs()}[estimator]
