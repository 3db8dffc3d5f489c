"""Mixtures of experts: the loss that keeps their routers from sending all tokens to a few experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.types.errors import TrainError


def balance_loss(said: Sequence[Tensor], chosen: int) -> Tensor:
    """Switch Transformer's auxiliary loss (arXiv:2101.03961, equations 4 to 6), over all layers together, as
    transformers computes it: experts * sum of (share of choices * mean probability); equal to `chosen` when balanced.

    Args:
        said: the routers' logits, [tokens, experts] by layer.
        chosen: experts that a token goes to.
    """
    chances = torch.cat([layer.float() for layer in said]).softmax(-1)
    tokens, experts = chances.shape
    choices = torch.bincount(chances.topk(chosen, -1).indices.flatten(), minlength=experts) / tokens
    return experts * (choices * chances.mean(0)).sum()


def router_coefficient(config: Any, wanted: float | None) -> float:
    """The loss's weight: as `train.router_loss` says, else as the model's configuration does, else 0.

    Raises:
        TrainError: it is wanted of a model whose configuration knows no such loss.
    """
    own = getattr(config, "router_aux_loss_coef", None)
    if wanted and own is None:
        raise TrainError(
            f"{config.model_type} has no routers with an auxiliary loss",
            place="train.router_loss",
            remedy="remove train.router_loss",
        )
    return float(own or 0.0) if wanted is None else wanted
