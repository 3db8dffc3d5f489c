"""Losses with one ratio per sequence: the whole episode, each of its turns, or each span of a turn."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.training.losses.batch import MAX_LOG_RATIO, TokenBatch, mean_by, sum_by
from agentrl.training.losses.clipped import clip_surrogate
from agentrl.training.losses.settings import Alol, Gmpo, Gspo

MAX_SEQUENCE_LOG_RATIO = 10.0
"""Upper bound of the mean log-ratio of a sequence, as in verl."""


def gspo(batch: TokenBatch, settings: Gspo) -> tuple[Tensor, Tensor]:
    """PPO's clip of s = exp(mean log-ratio of the sequence) (Zheng et al., 2025, Eq. 5).

    If the tokens of a sequence have different advantages, each token has its own term, whose gradient reaches all
    tokens of the sequence through s. Credit may scale the range of each turn (`a2tgpo`).
    """
    index = batch.sequence(settings.sequence)
    ratio = mean_by(batch.log_ratio, index)[index].clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    return clip_surrogate(ratio, batch.advantage, batch.scaled(settings.clip_low), batch.scaled(settings.clip_high))


def gspo_token(batch: TokenBatch, settings: Gspo) -> tuple[Tensor, Tensor]:
    """Has the value of `gspo`; the gradient of each token's term reaches only that token (Eq. 15), so that advantages
    may differ within a sequence. With equal advantages it is `gspo`."""
    index = batch.sequence(settings.sequence)
    mean = mean_by(batch.log_ratio, index)[index].detach()
    log_ratio = batch.logprob - batch.logprob.detach() + mean
    ratio = log_ratio.clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    return clip_surrogate(ratio, batch.advantage, batch.scaled(settings.clip_low), batch.scaled(settings.clip_high))


def gmpo(batch: TokenBatch, settings: Gmpo) -> tuple[Tensor, Tensor]:
    """-A exp(mean of the clipped log-ratios): the geometric mean of the tokens' ratios (Zhao et al., 2025).

    Each log-ratio is clipped on the side towards which its advantage moves it, as PPO clips the ratio.
    """
    index = batch.sequence(settings.sequence)
    sign, log_ratio = torch.sign(batch.advantage), batch.log_ratio
    clipped = log_ratio.clamp(-settings.clip_low, settings.clip_high)
    # The pessimistic one of the two. An advantage of 0 leaves the log-ratio unclipped.
    chosen = torch.where(sign * clipped < sign * log_ratio, clipped, log_ratio)
    ratio = mean_by(chosen, index)[index].exp()
    return -batch.advantage * ratio, chosen != log_ratio


def a_lol(batch: TokenBatch, settings: Alol) -> tuple[Tensor, Tensor]:
    """-sg(clip(w)) A log-probability, w = policy / reference policy of the whole episode or of the token.

    The reference is the policy that stored data is compared with, however the data came to be: it need not have sampled
    them. Only the clip of the weight bounds how far the policy moves; a clipped weight still carries a gradient.
    """
    log_ratio = batch.ref_log_ratio.detach()
    if settings.weight == "episode":
        log_ratio = sum_by(log_ratio, batch.episode)[batch.episode]
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    return -clipped * batch.advantage * batch.logprob, clipped != ratio
