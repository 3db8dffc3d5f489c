"""The plain policy gradient."""

from __future__ import annotations

import torch
from pydantic import BaseModel
from torch import Tensor

from agentrl.training.losses.batch import TokenBatch


def reinforce(batch: TokenBatch, settings: BaseModel) -> tuple[Tensor, Tensor]:
    """-A log-probability. With an advantage of 1 this is cross-entropy; with credit `gpg` it is GPG."""
    return -batch.logprob * batch.advantage, torch.zeros_like(batch.logprob, dtype=torch.bool)
