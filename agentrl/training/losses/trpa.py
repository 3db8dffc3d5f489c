"""The loss of Trust Region Preference Approximation (arXiv:2504.04524)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.training.losses.batch import TokenBatch, mean_by, sum_by
from agentrl.training.losses.outcome import first_tokens
from agentrl.training.losses.settings import Trpa

TOLERANCE = 1e-6
"""Rewards that differ by less are of one preference level."""


def trpa(batch: TokenBatch, settings: Trpa) -> tuple[Tensor, Tensor]:
    """Mean of -log sigmoid(h) over all pairs of a better and a worse episode of a group, plus KL to the old policy.

    h = beta (d_better - d_worse), d the mean log-ratio of the episode's tokens to the reference policy. The level of an
    episode is its reward. Pairs whose better episode has a reward of at least `top` have h times `anisotropy`. A step
    without any pair has -log sigmoid(d) for episodes of the top level and -log sigmoid(-d) for the others. The KL is
    `trust` * k3 of each token (XueruiSu/Trust-Region-Preference-Approximation, core_algos.py, dp_actor.py).

    A token carries its share of the loss of its episode, so that the aggregation `token_mean` gives the mean of the
    pairs.
    """
    first = first_tokens(batch.episode)
    level, group = batch.reward[first], batch.group[first]
    distance = mean_by(batch.log_ratio_to("reference"), batch.episode)
    top = level >= settings.top - TOLERANCE
    better = (level[:, None] > level[None, :] + TOLERANCE) & (group[:, None] == group[None, :])
    if better.any():
        scale = settings.beta * torch.where(top, settings.anisotropy, 1.0)
        pairs = -logsigmoid(scale[:, None] * (distance[:, None] - distance[None, :])) * better / better.sum()
        episode = (pairs.sum(0) + pairs.sum(1)) / 2
    else:
        episode = -logsigmoid(torch.where(top, distance, -distance)) / len(distance)
    tokens = sum_by(torch.ones_like(batch.logprob), batch.episode)
    loss = (episode * len(batch.logprob) / tokens)[batch.episode]
    backwards = -batch.log_ratio
    return loss + settings.trust * (backwards.exp() - backwards - 1), torch.zeros_like(loss, dtype=torch.bool)
