"""The implicit process reward model: a language model whose log-ratio to a reference is a reward per token or turn."""

from __future__ import annotations

from collections.abc import Sequence
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
from agentrl.types.figures.sums import exceeds, reaches
from agentrl.types.sample import TrainingSample


class ImplicitRewardModel:
    """Learns from outcomes only (PRIME, arXiv:2502.01456, eq. 3 and 5).

    The reward of a token is beta * (log-probability here - log-probability under the reference). The reward of an
    episode is the sum over its tokens, and the sigmoid of that is the probability that the episode is good. The loss is
    the cross-entropy against the outcome.

    With `loss: preference` (SWEET-RL, arXiv:2503.15478, eq. 2 and 3) the reward of an episode is beta times the sum
    over its turns of the mean log-ratio of the turn's tokens, and the sigmoid of the difference of two rewards is the
    probability that the first episode of a group is better. The loss is the mean of -log of it over all pairs of a
    group with different rewards.

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
            reward_model_loss: mean cross-entropy (nats) before the last step; reward_model_accuracy: share of correctly
            classified episodes or pairs (threshold 1/2) at that time. Nothing where there is no pair.
        """
        settings, by_turn = self.settings, self.settings.loss == "preference"
        names = {name: number for number, name in enumerate(dict.fromkeys(sample.episode_id for sample in samples))}
        owner = np.array([names[sample.episode_id] for sample in samples])
        judged = _Pairs(samples, owner) if by_turn else _Outcomes(samples, owner, settings.threshold)
        if not judged:
            return {}
        shares = [_shares(sample, by_turn) for sample in samples]
        packs = self.ranks.packs(samples, self.token_budget, self.policy.layout)
        loss = accuracy = 0.0
        for _ in range(settings.steps):
            chosen, slope = judged(self._rewards(samples, reference, shares, owner, len(names)))
            loss, accuracy = float(-np.log(np.maximum(chosen, 1e-12)).mean()), float((chosen > 0.5).mean())
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
        owner: NDArray[Any],
        episodes: int,
    ) -> NDArray[np.float64]:
        """Returns the reward of each episode. The branches of an episode are summed."""
        rows = zip(self.logprobs(samples), reference, shares, strict=True)
        ratio = [float(((ours - theirs) * share).sum()) for ours, theirs, share in rows]
        return np.asarray(self.settings.beta * np.bincount(owner, ratio, episodes), np.float64)


def _shares(sample: TrainingSample, by_turn: bool) -> Floats:
    """The weight of each token in the reward: 1, or 1 over the tokens of its turn."""
    share = np.ones(len(sample.token_ids), np.float32)
    for _, start, end in sample.turn_spans if by_turn else ():
        share[start:end] = 1 / (end - start)
    return share


class _Outcomes:
    """Episodes that are good or bad."""

    def __init__(self, samples: Sequence[TrainingSample], owner: NDArray[Any], threshold: float) -> None:
        self._good = np.zeros(int(owner.max(initial=-1)) + 1)
        self._good[owner] = [reaches(sample.reward, threshold) for sample in samples]

    def __call__(self, rewards: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the probability of each verdict, and the slope of the mean cross-entropy by each reward."""
        likely = 1 / (1 + np.exp(-rewards))
        return np.where(self._good > 0, likely, 1 - likely), (likely - self._good) / len(likely)


class _Pairs:
    """Pairs of episodes of a group, the better one first; false without a pair."""

    def __init__(self, samples: Sequence[TrainingSample], owner: NDArray[Any]) -> None:
        _, first = np.unique(owner, return_index=True)
        episodes = [samples[index] for index in first]
        pairs = [
            (i, j)
            for i, better in enumerate(episodes)
            for j, worse in enumerate(episodes)
            if better.group_id == worse.group_id and exceeds(better.reward, worse.reward)
        ]
        self._better, self._worse = np.array(pairs, np.int64).reshape(-1, 2).T

    def __len__(self) -> int:
        return len(self._better)

    def __call__(self, rewards: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As `_Outcomes`, by pair."""
        likely = 1 / (1 + np.exp(rewards[self._worse] - rewards[self._better]))
        missing = (1 - likely) / len(self)
        slope = np.zeros(len(rewards))
        np.add.at(slope, self._worse, missing)
        np.add.at(slope, self._better, -missing)
        return likely, slope
