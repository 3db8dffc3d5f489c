"""The implicit process reward model: a language model whose log-ratio to a reference is a reward per token or turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.config.train import RewardModelSettings
from agentrl.training.model.packing import Floats
from agentrl.training.model.policy import Policy
from agentrl.training.parallel.ranks import Ranks, collective
from agentrl.training.parallel.shards import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)
from agentrl.types.figures.sums import TOLERANCE, reaches
from agentrl.types.sample import TrainingSample

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]
Judge = Callable[[Numbers], tuple[Numbers, Numbers]]
"""Of the rewards of episodes: the probability of each right answer, and the slope of their mean -log by reward."""


class ImplicitRewardModel:
    """Learns from outcomes only (PRIME, arXiv:2502.01456, eq. 3 and 5; iStar, arXiv:2509.19199; SWEET-RL,
    arXiv:2503.15478, eq. 2 and 3).

    The reward of a token is beta * (log-probability here - log-probability under the reference). The reward of an
    episode is the sum over its tokens or, with `reward: turn_means`, the sum over its turns of the mean over the turn's
    tokens. Under `objective: outcome` its sigmoid is the probability that the episode is good, and the loss is the
    cross-entropy against the outcome. Under `preference` the sigmoid of a difference is the probability that one
    episode of a group is better than another, and the loss is the mean of -log of that over all pairs whose first has
    the greater outcome (DPO).

    Args:
        policy: wraps a copy of the policy's model, which this class trains.
        token_budget: maximum number of unique tokens per forward pass.
        ranks: the processes that train the model together.
    """

    role = "reward_model"

    def __init__(
        self, policy: Policy, settings: RewardModelSettings, token_budget: int, ranks: Ranks | None = None
    ) -> None:
        self.settings, self.token_budget, self.ranks = settings, token_budget, ranks or Ranks()
        self.policy = policy
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=0.0)

    @collective
    def logprobs(self, samples: Sequence[TrainingSample]) -> list[Floats]:
        """Log-probabilities of the trained tokens, 0 at the others; one array per sample, with the sample's length."""
        out = [np.zeros(len(sample.token_ids), np.float32) for sample in samples]
        with torch.no_grad():
            packs = self.ranks.packs(samples, self.token_budget, self.policy.layout)
            for packed, own in self.policy.seeing(samples, packs):
                found = self.policy(packed)[0]
                if own:
                    packed.scatter(found.cpu().numpy(), out)
        self.ranks.all_reduce(out)
        return out

    @collective
    def fit(self, samples: Sequence[TrainingSample], reference: Sequence[Floats]) -> dict[str, float]:
        """Takes `steps` optimiser steps to separate good from bad episodes.

        Args:
            reference: log-probabilities under the reference, as `logprobs` returns them.

        Returns:
            reward_model_loss: mean loss (nats) before the last step; reward_model_accuracy: share of correctly
            classified episodes (threshold 1/2), or of pairs in the right order, at that time. Empty, without a step, if
            no two episodes of a group have different outcomes under `preference`.
        """
        settings = self.settings
        names = {name: number for number, name in enumerate(dict.fromkeys(sample.episode_id for sample in samples))}
        owner = np.array([names[sample.episode_id] for sample in samples])
        judge = _outcomes(samples, owner, settings.threshold)
        if settings.objective == "preference":
            better, worse = _pairs(samples, owner)
            if not len(better):
                return {}
            judge = partial(_preferences, better, worse)
        shares = [_shares(sample, settings.reward) for sample in samples]
        packs = self.ranks.packs(samples, self.token_budget, self.policy.layout)
        loss = accuracy = 0.0
        for _ in range(settings.steps):
            right, slope = judge(self._rewards(samples, reference, shares, owner, len(names)))
            loss, accuracy = float(-np.log(np.maximum(right, 1e-12)).mean()), float((right > 0.5).mean())
            # The gradient of the mean loss with respect to each log-probability: one value per episode, in shares.
            grad = settings.beta * slope
            for packed, own in self.policy.seeing(samples, packs):
                said = self.policy(packed)[0]
                each = grad[owner[packed.sample]] * packed.gather(shares)
                weights = torch.from_numpy(each).to(said) if own else 0.0
                (said * weights).sum().backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), settings.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"reward_model_loss": loss, "reward_model_accuracy": accuracy}

    @collective
    def state_dict(self) -> dict[str, Any]:
        """Returns the state for an exact resume, on any number of ranks."""
        return {
            "model": full_state_dict(self.policy, device="cpu"),
            "optimizer": full_optimizer_state_dict(self.optimizer),
        }

    @collective
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a result of `state_dict`."""
        load_full_state_dict(self.policy, state["model"], self.ranks)
        load_full_optimizer_state_dict(self.optimizer, state["optimizer"], self.ranks)

    def _rewards(
        self,
        samples: Sequence[TrainingSample],
        reference: Sequence[Floats],
        shares: Sequence[Floats],
        owner: Indices,
        episodes: int,
    ) -> Numbers:
        """Returns the reward of each episode. The branches of an episode are summed."""
        rows = zip(self.logprobs(samples), reference, shares, strict=True)
        ratio = [float(((ours - theirs) * share).sum()) for ours, theirs, share in rows]
        return np.asarray(self.settings.beta * np.bincount(owner, ratio, episodes), np.float64)


def _shares(sample: TrainingSample, reward: str) -> Floats:
    """Returns the weight of each token in the reward of its episode: 1, or 1 over the tokens of its turn."""
    share = np.ones(len(sample.token_ids), np.float32)
    for _, start, end in sample.turn_spans if reward == "turn_means" else ():
        share[start:end] = 1 / (end - start)
    return share


def _outcomes(samples: Sequence[TrainingSample], owner: Indices, threshold: float) -> Judge:
    """Returns what compares rewards of episodes with good and bad."""
    good = np.zeros(owner.max(initial=-1) + 1)
    good[owner] = [reaches(sample.reward, threshold) for sample in samples]

    def judge(rewards: Numbers) -> tuple[Numbers, Numbers]:
        likely = _sigmoid(rewards)
        return np.where(good > 0, likely, 1 - likely), (likely - good) / len(good)

    return judge


def _pairs(samples: Sequence[TrainingSample], owner: Indices) -> tuple[Indices, Indices]:
    """Returns all pairs of a better and a worse episode of a group, as indices of episodes."""
    count = int(owner.max(initial=-1)) + 1
    groups = {name: number for number, name in enumerate(dict.fromkeys(sample.group_id for sample in samples))}
    outcome, group = np.zeros(count), np.zeros(count, np.int64)
    outcome[owner] = [sample.reward for sample in samples]
    group[owner] = [groups[sample.group_id] for sample in samples]
    ahead = outcome[:, None] > outcome[None, :] + TOLERANCE
    better, worse = np.nonzero(ahead & (group[:, None] == group[None, :]))
    return better, worse


def _preferences(better: Indices, worse: Indices, rewards: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the probability that each pair is in the right order, and the slope of the mean loss by reward."""
    right = _sigmoid(rewards[better] - rewards[worse])
    lost = (1 - right) / len(right)
    slope = np.bincount(worse, lost, len(rewards)) - np.bincount(better, lost, len(rewards))
    return right, slope.astype(np.float64)


def _sigmoid(values: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-values)), np.float64)
