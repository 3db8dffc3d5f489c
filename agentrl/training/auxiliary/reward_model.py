"""The implicit process reward model of PRIME: a language model whose log-ratio to a reference is a reward per token."""

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
from agentrl.types.figures.sums import reaches
from agentrl.types.sample import TrainingSample


class ImplicitRewardModel:
    """Learns from outcomes only (PRIME, arXiv:2502.01456, eq. 3 and 5).

    The reward of a token is beta * (log-probability here - log-probability under the reference). The reward of an
    episode is the sum over its tokens, and the sigmoid of that is the probability that the episode is good. The loss is
    the cross-entropy against the outcome.

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
            classified episodes (threshold 1/2) at that time.
        """
        settings = self.settings
        names = {name: number for number, name in enumerate(dict.fromkeys(sample.episode_id for sample in samples))}
        owner = np.array([names[sample.episode_id] for sample in samples])
        good = np.zeros(len(names))
        good[owner] = [reaches(sample.reward, settings.threshold) for sample in samples]
        packs = self.ranks.packs(samples, self.token_budget, self.policy.layout)
        loss = accuracy = 0.0
        for _ in range(settings.steps):
            likely = self._likely(samples, reference, owner, len(names))
            chosen = np.where(good > 0, likely, 1 - likely)
            loss, accuracy = float(-np.log(np.maximum(chosen, 1e-12)).mean()), float((chosen > 0.5).mean())
            # The gradient of the mean cross-entropy with respect to each log-probability, one value per episode.
            grad = settings.beta * (likely - good) / len(names)
            for packed, own in self.policy.seeing(samples, packs):
                said = self.policy(packed)[0]
                weights = torch.from_numpy(grad[owner[packed.sample]]).to(said) if own else 0.0
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

    def _likely(
        self, samples: Sequence[TrainingSample], reference: Sequence[Floats], owner: NDArray[Any], episodes: int
    ) -> NDArray[np.float64]:
        """Returns each episode's probability of being good. The branches of an episode are summed."""
        ratio = [float((ours - theirs).sum()) for ours, theirs in zip(self.logprobs(samples), reference, strict=True)]
        likely: NDArray[np.float64] = 1 / (1 + np.exp(-self.settings.beta * np.bincount(owner, ratio, episodes)))
        return likely
