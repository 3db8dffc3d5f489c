"""Preference losses: they compare a good episode with a bad one, or weigh each episode on its own.

An episode's `reward` is its label: 1 if it was chosen, 0 if it was rejected; a `group` is a pair. For a loss that takes
three, the episode to be imitated has label 2. Only the sampled
tokens of an episode count, on all branches: l is the sum of their log-probabilities, d the sum of their log-ratios to
the reference policy. Every token carries the loss of its pair, so that the mean over sequences of token means is the
mean over pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.training.losses.batch import TokenBatch, mean_by, sum_by
from agentrl.training.losses.outcome import first_tokens
from agentrl.training.losses.settings import Dpo, Kto, Paired, Simpo, Tpo
from agentrl.types.errors import TrainError

Result = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Sides:
    """A value of the chosen [P] and of the rejected episode [P] of each pair."""

    chosen: Tensor
    rejected: Tensor

    @property
    def margin(self) -> Tensor:
        """Chosen minus rejected [P]."""
        return self.chosen - self.rejected


def dpo(batch: TokenBatch, settings: Dpo) -> Result:
    """-log sigmoid(beta (d_c - d_r)) (Rafailov et al., 2023, Eq. 7), with conservative DPO's label smoothing."""
    margin = settings.beta * _log_ratios(batch, mean=settings.per_token).margin
    smoothing = settings.label_smoothing
    return _of_pairs(batch, settings, -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin))


def ipo(batch: TokenBatch, settings: Paired) -> Result:
    """(mean d_c - mean d_r - 1 / (2 beta))^2 (Azar et al., 2023, Eq. 17), with means over tokens, as in TRL."""
    return _of_pairs(batch, settings, (_log_ratios(batch, mean=True).margin - 1 / (2 * settings.beta)).square())


def hinge(batch: TokenBatch, settings: Paired) -> Result:
    """max(0, 1 - beta (d_c - d_r)) (Liu et al., 2023)."""
    return _of_pairs(batch, settings, torch.relu(1 - settings.beta * _log_ratios(batch).margin))


def apo_zero(batch: TokenBatch, settings: Paired) -> Result:
    """1 - sigmoid(beta d_c) + sigmoid(beta d_r): raises chosen, lowers rejected (D'Oosterlinck et al., 2024)."""
    sides = _log_ratios(batch)
    loss = 1 - torch.sigmoid(settings.beta * sides.chosen) + torch.sigmoid(settings.beta * sides.rejected)
    return _of_pairs(batch, settings, loss)


def simpo(batch: TokenBatch, settings: Simpo) -> Result:
    """-log sigmoid(beta (mean l_c - mean l_r) - gamma) (Meng et al., 2024, Eq. 6)."""
    margin = _by_side(batch, mean_by(batch.logprob, batch.episode)).margin
    return _of_pairs(batch, settings, -logsigmoid(settings.beta * margin - settings.gamma))


def cpo(batch: TokenBatch, settings: Paired) -> Result:
    """-log sigmoid(beta (l_c - l_r)) + `sft` * cross-entropy of the chosen (Xu et al., 2024, Eq. 5)."""
    margin = _by_side(batch, sum_by(batch.logprob, batch.episode)).margin
    return _of_pairs(batch, settings, -logsigmoid(settings.beta * margin))


def orpo(batch: TokenBatch, settings: Paired) -> Result:
    """-beta log sigmoid(log odds_c - log odds_r) + `sft` * cross-entropy of the chosen (Hong et al., 2024, Eq. 6).

    The odds are those of the geometric mean of an episode's token probabilities. The cross-entropy covers the sampled
    tokens (in TRL also the prompt).
    """
    mean = mean_by(batch.logprob, batch.episode)
    odds = mean - torch.log1p(-mean.exp())
    return _of_pairs(batch, settings, -settings.beta * logsigmoid(_by_side(batch, odds).margin))


def tpo(batch: TokenBatch, settings: Tpo) -> Result:
    """-log sigmoid(beta (l_c - l_r) - gamma) + alpha * cross-entropy of the gold reply (Saeidi et al., 2024, Eq. 9).

    The gold reply is a third one, better than the chosen one: the policy imitates it in the same step, without a
    reference policy. Its cross-entropy is the mean over its tokens, as of `sft` in the other losses.
    """
    first = first_tokens(batch.episode)
    label, group = batch.reward[first], batch.group[first]
    count = int(group.max()) + 1
    value = (mean_by if settings.per_token else sum_by)(batch.logprob, batch.episode)
    level = mean_by(batch.logprob, batch.episode)
    sides = []
    for wanted, found in ((2, level), (1, value), (0, value)):
        of = label == wanted
        if (torch.bincount(group[of], minlength=count) != 1).any():
            raise TrainError(
                "a group is not a gold, a chosen and a rejected episode",
                place="train.loss",
                remedy="label one of three with reward 2, one with 1 and one with 0",
            )
        sides.append(found.new_zeros(count).index_add(0, group[of], found[of]))
    gold, chosen, rejected = sides
    loss = -logsigmoid(settings.beta * (chosen - rejected) - settings.gamma) - settings.alpha * gold
    return loss[batch.group], torch.zeros_like(batch.logprob, dtype=torch.bool)


def kto(batch: TokenBatch, settings: Kto) -> Result:
    """1 - sigmoid(beta (d - z)) of good episodes, 1 - sigmoid(beta (z - d)) of bad ones (Ethayarajh et al., 2024).

    The baseline z is in `advantage`: the divergence of policy and reference on mismatched episodes of the step, at
    least 0, without gradient.
    """
    ratio = sum_by(batch.ref_log_ratio, batch.episode)
    first = first_tokens(batch.episode)
    score = settings.beta * (ratio - batch.advantage[first])
    good = batch.reward[first] > 0
    weight = torch.where(good, settings.desirable, settings.undesirable)
    loss = weight * (1 - torch.sigmoid(torch.where(good, score, -score)))
    return loss[batch.episode], torch.zeros_like(batch.logprob, dtype=torch.bool)


def _log_ratios(batch: TokenBatch, *, mean: bool = False) -> Sides:
    """d of both sides; `mean`: divided by the number of tokens."""
    return _by_side(batch, (mean_by if mean else sum_by)(batch.ref_log_ratio, batch.episode))


def _by_side(batch: TokenBatch, of_episode: Tensor) -> Sides:
    """Sorts a value of each episode [S] by pair."""
    first = first_tokens(batch.episode)
    good, pair = batch.reward[first] > 0, batch.group[first]
    count = int(pair.max()) + 1
    if len(first) != 2 * count or (torch.bincount(pair[good], minlength=count) != 1).any():
        raise TrainError(
            "a group is not a pair of a chosen and a rejected episode",
            place="train.loss",
            remedy="label one of two with reward 1 and the other with 0, or use the loss kto, which needs no pairs",
        )
    sides = (pair.new_zeros(count).scatter(0, pair[which], which.nonzero()[:, 0]) for which in (good, ~good))
    return Sides(*(of_episode[index] for index in sides))


def _of_pairs(batch: TokenBatch, settings: Paired, of_pair: Tensor) -> Result:
    """Adds the cross-entropy of all chosen tokens to the loss of each pair [P], and expands it to tokens [n]."""
    if settings.sft:
        of_pair = of_pair - settings.sft * batch.logprob[batch.reward > 0].mean()
    return of_pair[batch.group], torch.zeros_like(batch.logprob, dtype=torch.bool)
