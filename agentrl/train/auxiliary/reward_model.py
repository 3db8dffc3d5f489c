"""The implicit process reward model of PRIME: a language model whose log-ratio to a reference is a reward per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.config.train import RewardModelSettings
from agentrl.train.model.packing import Floats
from agentrl.train.model.policy import Policy
from agentrl.train.parallel.ranks import Ranks, collective
from agentrl.train.parallel.shards import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)
from agentrl.types.sample import TrainingSample


class ImplicitRewardModel:
    """Learns from outcomes alone (PRIME, arXiv:2502.01456, eq. 3 and 5).

    The reward of a token is beta * (log-probability here - under the reference); an episode's is their sum, and its
    sigmoid is the probability that the episode is a good one. Cross-entropy against the outcome trains it.

    Args:
        policy: on a copy of the policy's model, which is trained.
        token_budget: unique tokens of one forward pass at most.
        ranks: the processes that train it together.
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
        """Log-probabilities of the samples' trained tokens; 0 at the others. As long as the samples."""
        out = [np.zeros(len(sample.token_ids), np.float32) for sample in samples]
        with torch.no_grad():
            for packed, own in self.ranks.packs(samples, self.token_budget, self.policy.layout):
                found = self.policy(packed)[0]
                if own:
                    packed.scatter(found.cpu().numpy(), out)
        self.ranks.all_reduce(out)
        return out

    @collective
    def fit(self, samples: Sequence[TrainingSample], reference: Sequence[Floats]) -> dict[str, float]:
        """Takes `steps` steps towards telling the samples' episodes apart.

        Args:
            reference: log-probabilities under the reference, as `logprobs` gives them.

        Returns:
            reward_model_loss: mean cross-entropy (nats) before the last step; reward_model_accuracy: share of the
            episodes that were on the right side of 1/2 then.
        """
        settings = self.settings
        names = {name: number for number, name in enumerate(dict.fromkeys(sample.episode_id for sample in samples))}
        owner = np.array([names[sample.episode_id] for sample in samples])
        good = np.zeros(len(names))
        good[owner] = [sample.reward >= settings.threshold for sample in samples]
        packs = self.ranks.packs(samples, self.token_budget, self.policy.layout)
        loss = accuracy = 0.0
        for _ in range(settings.steps):
            likely = self._likely(samples, reference, owner, len(names))
            chosen = np.where(good > 0, likely, 1 - likely)
            loss, accuracy = float(-np.log(np.maximum(chosen, 1e-12)).mean()), float((chosen > 0.5).mean())
            # The gradient of the mean cross-entropy with respect to each log-probability, one value per episode.
            grad = settings.beta * (likely - good) / len(names)
            for packed, own in packs:
                said = self.policy(packed)[0]
                weights = torch.from_numpy(grad[owner[packed.sample]]).to(said) if own else 0.0
                (said * weights).sum().backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), settings.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"reward_model_loss": loss, "reward_model_accuracy": accuracy}

    @collective
    def state_dict(self) -> dict[str, Any]:
        """What continues the model exactly, on any number of ranks."""
        return {
            "model": full_state_dict(self.policy, device="cpu"),
            "optimizer": full_optimizer_state_dict(self.optimizer),
        }

    @collective
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` returned."""
        load_full_state_dict(self.policy, state["model"], self.ranks)
        load_full_optimizer_state_dict(self.optimizer, state["optimizer"], self.ranks)

    def _likely(
        self, samples: Sequence[TrainingSample], reference: Sequence[Floats], owner: NDArray[Any], episodes: int
    ) -> NDArray[np.float64]:
        """Probability that each episode is a good one. An episode's branches add up."""
        ratio = [float((ours - theirs).sum()) for ours, theirs in zip(self.logprobs(samples), reference, strict=True)]
        likely: NDArray[np.float64] = 1 / (1 + np.exp(-self.settings.beta * np.bincount(owner, ratio, episodes)))
        return likely
