"""Losses on the outcomes (0 or 1) of a group's episodes. They do not use advantages."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.training.losses.batch import TokenBatch, mean_by, sum_by
from agentrl.training.losses.settings import Nft, Pacs
from agentrl.types.errors import TrainError

RATE_BOUND = 0.02
"""Success rates are clamped to this value and 1 - this value, as in NFT's code: 0 and 1 would divide by zero."""


def pacs(batch: TokenBatch, settings: Pacs) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy of the outcome R under sigmoid(psi_i - mean of the other members' psi).

    psi_i = beta * sum over the episode's tokens of the log-ratio (ritzz-ai/PACS also sums the prompt's padding; we do
    not). Of the authors' two ways to centre psi this is RLOO's; GRPO's is not implemented. A group of one is compared
    with 0. `balance` gives the right and the wrong episodes of a group half of its weight each. Every token carries the
    loss of its episode: a mean over sequences of token means counts each episode once.
    """
    first = first_tokens(batch.episode)
    label, group = batch.reward[first], batch.group[first]
    _check_binary(label)
    psi = settings.beta * sum_by(batch.log_ratio, batch.episode)
    members = sum_by(torch.ones_like(psi), group)[group]
    others = (sum_by(psi, group)[group] - psi) / (members - 1).clamp(min=1)
    weight = torch.ones_like(psi)
    if settings.balance:
        right = sum_by(label, group)[group]
        same = torch.where(label > 0, right, members - right)
        weight = torch.where(same < members, members / (2 * same), 1.0)
    loss = functional.binary_cross_entropy_with_logits(psi - others, label, weight=weight, reduction="none")
    return loss[batch.episode], torch.zeros_like(batch.logprob, dtype=torch.bool)


def nft(batch: TokenBatch, settings: Nft) -> tuple[Tensor, Tensor]:
    """Maximum likelihood of right episodes, and of wrong episodes under the implied negative policy (Eq. 9).

    With w the token's ratio and r the success rate of its group: -log w where R = 1, else
    -negative_weight * log(max(floor, (1 - r w) / (1 - r))), the bound straight-through. Groups that are all right or
    all wrong carry no signal and have weight 0 (the authors drop them earlier).
    """
    first = first_tokens(batch.episode)
    label, group = batch.reward[first], batch.group[first]
    _check_binary(label)
    mean = mean_by(label, group)[group][batch.episode]
    rate = mean.clamp(RATE_BOUND, 1 - RATE_BOUND)
    ratio = batch.log_ratio.clamp(max=10.0).exp()
    implied = (1 - rate * ratio) / (1 - rate)
    bounded = implied.detach() < settings.floor
    implied = torch.where(bounded, implied + (settings.floor - implied).detach(), implied)
    negative = -settings.negative_weight * implied.log()
    scale = {"failure_rate": 1 - rate, "odds": ((1 - rate) / rate).sqrt(), "none": torch.ones_like(rate)}
    mixed = (mean > 0) & (mean < 1)
    loss = torch.where(batch.reward > 0, -batch.log_ratio, negative) * scale[settings.normalise] * mixed
    return loss, bounded & (batch.reward == 0)


def first_tokens(index: Tensor) -> Tensor:
    """The position of one token of each episode, by index [largest index + 1]."""
    positions = torch.arange(len(index), device=index.device)
    return positions.new_zeros(int(index.max()) + 1).scatter(0, index, positions)


def _check_binary(label: Tensor) -> None:
    if not ((label == 0) | (label == 1)).all():
        odd = label[(label != 0) & (label != 1)][0].item()
        raise TrainError(
            f"an episode has reward {odd:g}; this loss learns from outcomes 0 and 1",
            place="train.loss",
            remedy="give weight 0 to all rewards except one that is 0 or 1, or use another loss",
        )
