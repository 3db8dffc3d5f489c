"""Models trained alongside the policy, for credit that needs them: critics and the reward model."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, Literal

from agentrl.config.train import CriticSettings, RewardModelSettings, TrainSettings
from agentrl.training.auxiliary.critic import Critic
from agentrl.training.auxiliary.reward_model import ImplicitRewardModel
from agentrl.training.model.policy import Policy
from agentrl.training.parallel.ranks import Ranks

AuxiliaryModel = Critic | ImplicitRewardModel
AuxiliarySettings = CriticSettings | RewardModelSettings

CRITICS: tuple[Literal["value", "progress"], ...] = ("value", "progress")
"""Columns of the credit table that a critic fills; each column that credit needs gets its own critic."""

REWARD_MODEL = "reward_model"


def required_models(settings: TrainSettings, needs: Collection[str]) -> dict[str, AuxiliarySettings]:
    """Returns the models that compute the columns for credit, by name, with their settings.

    A section (`critic`, `reward_model`) that the settings lack gives no model: credit that needs one reports that."""
    found: dict[str, AuxiliarySettings] = {}
    if settings.critic is not None:
        found |= dict.fromkeys((name for name in CRITICS if name in needs), settings.critic)
    if settings.reward_model is not None and "prm_logprob" in needs:
        found[REWARD_MODEL] = settings.reward_model
    return found


def make_backbone(settings: AuxiliarySettings, model: Any) -> Any | None:
    """A copy of the policy's model that the auxiliary model trains, made before layers are wrapped; None: the auxiliary
    model reads the policy."""
    if isinstance(settings, RewardModelSettings):
        return copy.deepcopy(model)
    # The whole copy trains, also if the policy trains only adapters or its top layers.
    return None if settings.body == "policy" else copy.deepcopy(model).requires_grad_(True)


def auxiliary_model(
    name: str, settings: AuxiliarySettings, policy: Policy, token_budget: int, ranks: Ranks
) -> AuxiliaryModel:
    """Builds the auxiliary model on a separate backbone, or on the policy; sharded with several ranks."""
    if isinstance(settings, RewardModelSettings):
        return ImplicitRewardModel(policy, settings, token_budget, ranks)
    return Critic(policy, settings, token_budget, ranks, role=name)
