"""Losses that bound how far a step may move the probability of each token."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.train.losses.batch import TokenBatch
from agentrl.train.losses.settings import Cispo, Dppo, PpoClip, Sapo


def ppo_clip(batch: TokenBatch, settings: PpoClip) -> tuple[Tensor, Tensor]:
    """max(-w A, -clip(w, 1 - clip_low, 1 + clip_high) A), w = policy / old policy (Schulman et al., 2017).

    Bounds that differ are DAPO's clip-higher (Yu et al., 2025). With `dual_clip` c, a token of negative advantage
    costs at most -c A (Ye et al., 2020).
    """
    return clip_surrogate(batch.log_ratio.exp(), batch.advantage, settings.clip_low, settings.clip_high,
                          settings.dual_clip)  # fmt: skip


def clip_surrogate(
    ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective of any ratio, per token [n], and where it is clipped [n]."""
    plain = -ratio * advantage
    clipped = -ratio.clamp(1 - low, 1 + high) * advantage
    worst = torch.maximum(plain, clipped)
    is_clipped = clipped > plain
    if dual is not None:
        bound = -dual * advantage
        beyond = (advantage < 0) & (worst > bound)
        worst, is_clipped = torch.where(beyond, bound, worst), is_clipped | beyond
    return worst, is_clipped


def cispo(batch: TokenBatch, settings: Cispo) -> tuple[Tensor, Tensor]:
    """-sg(clip(w)) A log-probability: clips the weight, never the gradient (MiniMax-M1, Eq. 4).

    `clip_high` counts from 1, as in verl; TRL means the bound itself.
    """
    ratio = batch.log_ratio.exp().detach()
    low = None if settings.clip_low is None else 1 - settings.clip_low
    clipped = ratio.clamp(low, 1 + settings.clip_high)
    return -clipped * batch.advantage * batch.logprob, clipped != ratio


def sapo(batch: TokenBatch, settings: Sapo) -> tuple[Tensor, Tensor]:
    """-(4 / tau) sigmoid(tau (w - 1)) A: a smooth gate in place of the clip. Nothing is ever clipped."""
    tau = torch.where(batch.advantage > 0, settings.tau_pos, settings.tau_neg)
    gate = torch.sigmoid(tau * (batch.log_ratio.exp() - 1)) * 4 / tau
    return -gate * batch.advantage, torch.zeros_like(gate, dtype=torch.bool)


def dppo_tv(batch: TokenBatch, settings: Dppo) -> tuple[Tensor, Tensor]:
    """-sg(min(w, max_ratio)) A log-probability, without the tokens whose probability has moved away too far.

    Binary total variation: with A > 0 a token counts while p - p_old <= divergence_high, else while
    p - p_old >= -divergence_low.
    """
    moved = batch.logprob.detach().exp() - batch.old_logprob.exp()
    valid = torch.where(batch.advantage > 0, moved <= settings.divergence_high, moved >= -settings.divergence_low)
    return _masked_policy_gradient(batch, valid, settings.max_ratio)


def dppo_kl(batch: TokenBatch, settings: Dppo) -> tuple[Tensor, Tensor]:
    """As `dppo_tv`, measured by the KL divergence of two coins: this token or any other, old policy against policy."""
    new, old = batch.logprob.detach().exp(), batch.old_logprob.exp()
    rest = torch.log((1 - old + 1e-8) / (1 - new + 1e-8))
    divergence = old * (batch.old_logprob - batch.logprob.detach()) + (1 - old) * rest
    up = (divergence <= settings.divergence_high) | (new <= old)
    down = (divergence <= settings.divergence_low) | (new >= old)
    return _masked_policy_gradient(batch, torch.where(batch.advantage > 0, up, down), settings.max_ratio)


def _masked_policy_gradient(batch: TokenBatch, valid: Tensor, max_ratio: float) -> tuple[Tensor, Tensor]:
    ratio = batch.log_ratio.exp().detach().clamp(max=max_ratio)
    return -ratio * batch.advantage * batch.logprob * valid, ~valid
