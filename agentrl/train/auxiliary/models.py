"""Models that train beside the policy, for credit that needs them: critics and the reward model."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from agentrl.config.train import TrainSettings
from agentrl.train.auxiliary.critic import Critic
from agentrl.train.auxiliary.reward_model import ImplicitRewardModel
from agentrl.train.model.policy import Policy
from agentrl.train.parallel.ranks import Ranks

AuxiliaryModel = Critic | ImplicitRewardModel

CRITICS = ("value", "progress")
"""Columns of the credit table that a critic gives, one of its own for each that credit needs."""

REWARD_MODEL = "reward_model"


def required_models(settings: TrainSettings, needs: Collection[str]) -> list[str]:
    """Names of the models that fill the columns which credit needs.

    Without `critic` or `reward_model` in the settings there are none of those: credit that needs one reports it."""
    critics = [name for name in CRITICS if name in needs] if settings.critic is not None else []
    return critics + ([REWARD_MODEL] if settings.reward_model is not None and "prm_logprob" in needs else [])


def make_backbone(name: str, model: Any, settings: TrainSettings) -> Any | None:
    """A copy of the policy's model for the auxiliary model to train, with no layer wrapped yet; None: it reads the
    policy."""
    if name == REWARD_MODEL:
        return copy.deepcopy(model)
    assert settings.critic is not None
    # All of the copy trains, also where the policy trains adapters or its top layers only.
    return None if settings.critic.body == "policy" else copy.deepcopy(model).requires_grad_(True)


def auxiliary_model(name: str, policy: Policy, settings: TrainSettings, ranks: Ranks) -> AuxiliaryModel:
    """The auxiliary model on its own backbone, or on the policy, sharded where there are several ranks."""
    if name == REWARD_MODEL:
        assert settings.reward_model is not None
        return ImplicitRewardModel(policy, settings.reward_model, settings.token_budget, ranks)
    assert settings.critic is not None
    return Critic(policy, settings.critic, settings.token_budget, ranks, role=name)
