"""Losses that limit how far a step moves the probability of each token."""

from __future__ import annotations

import torch
from pydantic import BaseModel
from torch import Tensor

from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.settings import Awr, Cispo, Dppo, PpoClip, Rec, Sapo


def reinforce(batch: TokenBatch, settings: BaseModel) -> tuple[Tensor, Tensor]:
    """-A log-probability. With an advantage of 1 this is cross-entropy; with credit `gpg` it is GPG."""
    return -batch.logprob * batch.advantage, torch.zeros_like(batch.logprob, dtype=torch.bool)


def awr(batch: TokenBatch, settings: Awr) -> tuple[Tensor, Tensor]:
    """-min(exp(A / beta), max_weight) log-probability: imitation that prefers what was better than expected (Peng et
    al., 2019). It moves towards the policy of the data times exp(A / beta), and needs no ratio: any data will do."""
    weight = (batch.advantage / settings.beta).exp()
    return -weight.clamp(max=settings.max_weight) * batch.logprob, weight > settings.max_weight


def ppo_clip(batch: TokenBatch, settings: PpoClip) -> tuple[Tensor, Tensor]:
    """max(-w A, -clip(w, 1 - clip_low, 1 + clip_high) A), w = policy / old policy (Schulman et al., 2017).

    Different bounds give DAPO's clip-higher (Yu et al., 2025). With `dual_clip` c, the loss of a token with negative
    advantage is at most -c A (Ye et al., 2020). Credit may scale the range of each turn (`a2tgpo`).
    """
    low, high = batch.scaled(settings.clip_low), batch.scaled(settings.clip_high)
    return clip_surrogate(batch.log_ratio.exp(), batch.advantage, low, high, settings.dual_clip)


def clip_surrogate(
    ratio: Tensor, advantage: Tensor, low: float | Tensor, high: float | Tensor, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective per token [n] for a given ratio, and whether the token is clipped [n].

    Args:
        low, high: how far the ratio may be below and above 1: numbers, or one for each token [n].
    """
    plain = -ratio * advantage
    clipped = -torch.clamp(ratio, _tensor(1 - low, ratio), _tensor(1 + high, ratio)) * advantage
    worst = torch.maximum(plain, clipped)
    is_clipped = clipped > plain
    if dual is not None:
        bound = -dual * advantage
        beyond = (advantage < 0) & (worst > bound)
        worst, is_clipped = torch.where(beyond, bound, worst), is_clipped | beyond
    return worst, is_clipped


def _tensor(bound: float | Tensor, like: Tensor) -> Tensor:
    return bound if isinstance(bound, Tensor) else like.new_tensor(bound)


def cispo(batch: TokenBatch, settings: Cispo) -> tuple[Tensor, Tensor]:
    """-sg(clip(w)) A log-probability: clips the weight, not the gradient (MiniMax-M1, Eq. 4).

    The upper bound is 1 + `clip_high`, as in verl; in TRL the setting is the bound itself.
    """
    ratio = batch.log_ratio.exp().detach()
    low = None if settings.clip_low is None else 1 - settings.clip_low
    clipped = ratio.clamp(low, 1 + settings.clip_high)
    return -clipped * batch.advantage * batch.logprob, clipped != ratio


def rec(batch: TokenBatch, settings: Rec) -> tuple[Tensor, Tensor]:
    """-A log-probability of the tokens that are not clipped: REINFORCE whose updates are kept small, by clipping or by
    a regulariser. No importance ratio is needed for that (Yao et al., 2025); with `weight: ratio`, `one_side` has
    PPO's gradient.
    """
    ratio, advantage = batch.log_ratio.exp().detach(), batch.advantage
    above, below = ratio > 1 + settings.clip_high, ratio < 1 - settings.clip_low
    if settings.clip == "one_side":
        clipped = (above & (advantage > 0)) | (below & (advantage < 0))
    elif settings.clip == "two_side":
        clipped = above | below
    elif settings.clip == "ring":
        back = (advantage >= 0) & (ratio <= 1 - settings.ring_low)
        back |= (advantage <= 0) & (ratio >= 1 + settings.ring_high)
        clipped = (above | below) & ~back
    else:
        clipped = torch.zeros_like(above)
    if settings.weight == "ratio":
        advantage = advantage * ratio
    elif settings.weight == "advantage":
        advantage = advantage * (advantage / settings.temperature).exp()
    loss = -advantage * batch.logprob * ~clipped
    if settings.regulariser == "k2":
        loss = loss + settings.coef * batch.log_ratio**2
    elif settings.regulariser == "forward_kl":
        loss = loss - settings.coef * batch.logprob
    return loss, clipped


def sapo(batch: TokenBatch, settings: Sapo) -> tuple[Tensor, Tensor]:
    """-(4 / tau) sigmoid(tau (w - 1)) A: a smooth gate instead of the clip. No token counts as clipped."""
    tau = torch.where(batch.advantage > 0, settings.tau_pos, settings.tau_neg)
    gate = torch.sigmoid(tau * (batch.log_ratio.exp() - 1)) * 4 / tau
    return -gate * batch.advantage, torch.zeros_like(gate, dtype=torch.bool)


def dppo_tv(batch: TokenBatch, settings: Dppo) -> tuple[Tensor, Tensor]:
    """-sg(min(w, max_ratio)) A log-probability, with tokens masked whose probability has moved too far.

    Binary total variation: with A > 0 a token is kept while p - p_old <= divergence_high, else while
    p - p_old >= -divergence_low.
    """
    moved = batch.logprob.detach().exp() - batch.old_logprob.exp()
    valid = torch.where(batch.advantage > 0, moved <= settings.divergence_high, moved >= -settings.divergence_low)
    return _masked_policy_gradient(batch, valid, settings.max_ratio)


def dppo_kl(batch: TokenBatch, settings: Dppo) -> tuple[Tensor, Tensor]:
    """Variant of `dppo_tv` with the binary KL divergence (this token or any other), KL(old policy || policy)."""
    new, old = batch.logprob.detach().exp(), batch.old_logprob.exp()
    rest = torch.log((1 - old + 1e-8) / (1 - new + 1e-8))
    divergence = old * (batch.old_logprob - batch.logprob.detach()) + (1 - old) * rest
    up = (divergence <= settings.divergence_high) | (new <= old)
    down = (divergence <= settings.divergence_low) | (new >= old)
    return _masked_policy_gradient(batch, torch.where(batch.advantage > 0, up, down), settings.max_ratio)


def _masked_policy_gradient(batch: TokenBatch, valid: Tensor, max_ratio: float) -> tuple[Tensor, Tensor]:
    ratio = batch.log_ratio.exp().detach().clamp(max=max_ratio)
    return -ratio * batch.advantage * batch.logprob * valid, ~valid
