"""Losses that weigh tokens by the policy's entropy (Light-IF, arXiv:2508.03178)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.training.losses.batch import TokenBatch, sum_by
from agentrl.training.losses.clipped import ppo_clip
from agentrl.training.losses.settings import EntropySft, Tea


def tea(batch: TokenBatch, settings: Tea) -> tuple[Tensor, Tensor]:
    """PPO's clip, less an entropy bonus whose weight differs from token to token (TEA-RL).

    With c = (A - mean A) (l - mean l), the covariance of a token, the weight is min(bound, scale * softmax of c over
    the tokens of the episode): tokens that are likely and whose advantage is high lose entropy fastest, and get most of
    the bonus. Means are over the step. The weight keeps its gradient, as in the authors' code.
    """
    loss, clipped = ppo_clip(batch, settings)
    advantage, logprob = batch.advantage, batch.logprob
    covariance = (advantage - advantage.mean()) * (logprob - logprob.detach().mean())
    largest = covariance.new_full((int(batch.episode.max()) + 1,), -torch.inf)
    largest = largest.scatter_reduce(0, batch.episode, covariance.detach(), "amax")
    share = (covariance - largest[batch.episode]).exp()
    share = share / sum_by(share, batch.episode)[batch.episode]
    weight = (settings.scale * share).clamp(max=settings.bound)
    return loss - weight * batch.needed("entropy"), clipped


def entropy_sft(batch: TokenBatch, settings: EntropySft) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the tokens that the policy has most to learn from: the `share` with the largest
    -l - coef * entropy. The others have no gradient, so that the policy keeps its entropy there.

    The loss of a chosen token is scaled by tokens / chosen tokens: with `token_mean` it is their mean.
    """
    surprise = -batch.logprob.detach() - settings.coef * batch.needed("entropy").detach()
    count = max(int(settings.share * len(surprise)), 1)
    chosen = torch.zeros_like(surprise)
    chosen[surprise.topk(count).indices] = len(surprise) / count
    return -batch.advantage * batch.logprob * chosen, chosen == 0
