"""Estimators with turn rewards of a judge or a progress head, instead of those of tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats, discounted
from agentrl.estimators.estimator import Advantages, Need, Reward, estimator
from agentrl.estimators.normalise import Discount, Normalisation
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.gae import GaeSettings, gae_of
from agentrl.estimators.turn.returns import against_group


class ProcessSettings(Normalisation):
    """Settings of advantages from turn rewards.

    Attributes:
        baseline: `critic`: GAE over tokens, whitened, as published; needs train.critic. `group`: reward-to-go,
            normalised over all turns of the group by `weighting`, `std`, `eps` and `singleton`; needs none.
        gamma: discount, per token with a critic and per turn with a group.
        lam: lambda of GAE; with a critic only.
    """

    baseline: Literal["critic", "group"] = "critic"
    gamma: Discount = 1.0
    lam: Discount = 1.0

    @property
    def needs_members(self) -> bool:
        """True with the baseline of the group; a critic is a baseline without other members."""
        return self.baseline == "group" and super().needs_members


class PprSettings(ProcessSettings):
    """Settings of `ppr`.

    Attributes:
        beta: the constant that ReNorm subtracts.
    """

    beta: float = Field(1.0, allow_inf_nan=False)


class SpaSettings(ProcessSettings):
    """Settings of `spa`.

    Attributes:
        grounding: reward of a turn that the environment carried out (`CreditTable.executed`).
    """

    grounding: float = Field(0.5, allow_inf_nan=False)


def _ppr_needs(settings: PprSettings) -> Iterable[Need]:
    return ["process", "value"] if settings.baseline == "critic" else ["process"]


def _spa_needs(settings: SpaSettings) -> Iterable[Need]:
    columns: list[Need] = ["progress", "executed"]
    return [*columns, "value"] if settings.baseline == "critic" else columns


def _ppr_reads(settings: PprSettings) -> Iterable[Reward]:
    return ["verdict", "tokens"] if settings.baseline == "critic" else ["verdict"]


def _spa_reads(settings: SpaSettings) -> Iterable[Reward]:
    return ["tokens"] if settings.baseline == "critic" else []


@estimator(
    granularity="token",
    source="arXiv:2509.25598; Zhuohao-Li/ppr@4b496fa main_ppo.py",
    certainty="A",
    needs=_ppr_needs,
    reads=_ppr_reads,
)
def ppr(table: CreditTable, settings: PprSettings) -> Advantages:
    """Principle process rewards with ReNorm: r_t = p_t + R - beta before the last turn, R on the last.

    p_t is the judge's score of the turn, from 0 to 1. With beta = 1 a turn of a solved episode (R = 1) gets 0 to 1, one
    of a failed episode (R = 0) -1 to 0. The immediate rewards of tools are not read.

    Differs from the paper: p_t comes from a reward component or a tool named `process`, for example `rubric_judge` with
    `reads: turn`. The authors' judge and its prompts are not included.
    """
    process = needed(table.process, "process")
    outcome = table.score[table.trajectory]
    reward = np.where(table.turns_left == 0, outcome, process + outcome - settings.beta)
    return from_rewards(table, reward, settings)


@estimator(
    granularity="token",
    source="arXiv:2505.20732 (the paper; the data step that was released does not use the estimates)",
    certainty="B",
    needs=_spa_needs,
    reads=_spa_reads,
)
def spa(table: CreditTable, settings: SpaSettings) -> Advantages:
    """Stepwise progress attribution: r_t = c_t + grounding * [the environment carried out the turn's calls].

    c_t is the progress head's estimate; it is trained so that the c_t of an episode sum to its outcome, which they
    replace as reward. A call that could not be parsed, names no tool, was refused, raised or timed out was not carried
    out, nor was one of which the environment says that it did nothing (`ToolResult.executed`).

    The paper's estimator is trained before reinforcement begins: `train.critic.warmup` iterations. Differs from it: it
    is a linear head on the policy's states, or a copy of the policy with one (`train.critic.body`), and goes on
    learning.
    """
    progress = needed(table.progress, "progress")
    executed = needed(table.executed, "executed")
    return from_rewards(table, progress + settings.grounding * executed, settings)


def from_rewards(table: CreditTable, reward: Floats, settings: ProcessSettings) -> Advantages:
    """Advantages of turn rewards [n_turns] under either baseline."""
    if settings.baseline == "critic":
        return gae_of(table, table.on_tokens(), reward, GaeSettings(gamma=settings.gamma, lam=settings.lam))
    return against_group(table, discounted(reward, table.turns_left, settings.gamma), settings)
