"""KL to the reference policy as part of the reward, before credit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from agentrl.credit.table import immediate
from agentrl.episode.record import Episode
from agentrl.train.loss_settings import KlSettings
from agentrl.train.losses.objective import kl_estimate
from agentrl.train.row import rows_of
from agentrl.train.trainer import Trainer


def with_kl_reward(
    episodes: Sequence[Episode], trainer: Trainer, settings: KlSettings, *, by_turn: bool
) -> tuple[list[Episode], float]:
    """The episodes with -coef * (sum of their tokens' KL estimates) in their rewards; and the mean KL of a token.

    The episodes that are stored stay as they are: the policy's distance is no property of theirs.

    Args:
        by_turn: into the reward of each turn, for estimators that read turns; else into the episode's.
    """
    rows = [rows_of(episode, [0.0] * len(episode.turns)) for episode in episodes]
    flat = [row for of_episode in rows for row in of_episode]
    pairs = zip(flat, trainer.logprobs(flat), trainer.logprobs(flat, reference=True), strict=True)
    sums: dict[str, dict[int, float]] = {}
    total, tokens = 0.0, 0
    for row, policy, reference in pairs:
        estimate = kl_estimate(torch.from_numpy(policy - reference), settings.estimator).numpy() * row.loss_mask
        turns = sums.setdefault(row.episode_id, {})
        for turn, start, end in row.turn_spans:
            turns[turn] = turns.get(turn, 0.0) + float(estimate[start:end].sum())
        total, tokens = total + float(estimate.sum()), tokens + int(row.loss_mask.sum())
    penalise = _turns if by_turn else _outcome
    penalised = [penalise(episode, sums.get(episode.id, {}), settings.coef) for episode in episodes]
    return penalised, total / max(tokens, 1)


def _outcome(episode: Episode, kl: dict[int, float], coef: float) -> Episode:
    return msgspec.structs.replace(episode, reward=(episode.reward or 0.0) - coef * sum(kl.values()))


def _turns(episode: Episode, kl: dict[int, float], coef: float) -> Episode:
    return msgspec.structs.replace(
        episode,
        turns=[
            msgspec.structs.replace(turn, reward=immediate(turn) - coef * kl.get(turn.index, 0.0))
            for turn in episode.turns
        ],
    )
