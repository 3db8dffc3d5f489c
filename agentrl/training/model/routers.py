"""Mixtures of experts: the auxiliary loss that balances the routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.types.errors import TrainError


def balance_loss(said: Sequence[Tensor], chosen: int) -> Tensor:
    """The auxiliary loss of Switch Transformer (arXiv:2101.03961, equations 4 to 6) over all layers together, as in
    transformers: experts * sum of (share of choices * mean probability). It equals `chosen` when balanced.

    Args:
        said: router logits, [tokens, experts] by layer.
        chosen: number of experts per token.
    """
    chances = torch.cat([layer.float() for layer in said]).softmax(-1)
    tokens, experts = chances.shape
    choices = torch.bincount(chances.topk(chosen, -1).indices.flatten(), minlength=experts) / tokens
    return experts * (choices * chances.mean(0)).sum()


def router_coefficient(config: Any, wanted: float | None) -> float:
    """The weight of the auxiliary loss: `train.router_loss`, else that of the model's configuration, else 0.

    Raises:
        TrainError: `train.router_loss` is set, but the model's configuration has no such loss.
    """
    own = getattr(config, "router_aux_loss_coef", None)
    if wanted and own is None:
        raise TrainError(
            f"{config.model_type} has no routers with an auxiliary loss",
            place="train.router_loss",
            remedy="remove train.router_loss",
        )
    return float(own or 0.0) if wanted is None else wanted
