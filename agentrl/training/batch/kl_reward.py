"""KL to the reference policy as part of the reward, before credit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.config.train import KlSettings
from agentrl.estimators.registry import Place
from agentrl.training.backend import Floats
from agentrl.training.losses.objective import kl_estimate
from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import immediate
from agentrl.types.sample import TrainingSample, by_turn


@dataclass(frozen=True)
class Penalised:
    """Episodes with -coef * KL in their rewards. Stored episodes are not changed: the penalty depends on the policy.

    Attributes:
        columns: for the credit table, by name and episode id: `token_reward`, if the penalty is per token.
        kl: mean estimate per token.
    """

    episodes: list[Episode]
    columns: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    kl: float = 0.0


def with_kl_reward(
    episodes: Sequence[Episode],
    samples: Sequence[TrainingSample],
    policy: Sequence[Floats],
    reference: Sequence[Floats],
    settings: KlSettings,
    place: Place,
) -> Penalised:
    """Subtracts coef * (KL estimate of each sampled token) from the reward of the token, of its turn, or, summed over
    the turns that it is credited to, from the outcome.

    Args:
        samples: of all episodes.
        policy, reference: log-probabilities of the samples' tokens (`TrainerBackend.logprobs`).
    """
    estimates = [
        kl_estimate(torch.from_numpy(ours - theirs), settings.estimator).numpy() * sample.loss_mask
        for sample, ours, theirs in zip(samples, policy, reference, strict=True)
    ]
    tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    mean = sum(float(estimate.sum()) for estimate in estimates) / max(tokens, 1)
    penalties = by_turn(samples, [-settings.coef * estimate.astype(np.float64) for estimate in estimates])
    if place == "tokens":
        return Penalised(list(episodes), {"token_reward": penalties}, mean)
    penalise = _turns if place == "turns" else _outcome
    return Penalised([penalise(e, penalties.get(e.id, np.zeros(0))) for e in episodes], kl=mean)


def _outcome(episode: Episode, penalty: NDArray[np.float64]) -> Episode:
    """Subtracts the penalty from outcomes. A seat with a separate outcome pays for its own tokens."""
    shares = _shares(episode, penalty)
    seats = {name: each for name, each in episode.contexts.items() if each.outcome is not None}
    paid = dict.fromkeys(seats, 0.0)
    rest = 0.0
    for turn in episode.own_turns:
        if turn.context in paid:
            paid[turn.context] += shares[turn.index]
        else:
            rest += shares[turn.index]
    scored = {
        name: msgspec.structs.replace(each, outcome=(each.outcome or 0.0) + paid[name]) for name, each in seats.items()
    }
    return msgspec.structs.replace(
        episode, reward=(episode.reward or 0.0) + rest, contexts={**episode.contexts, **scored}
    )


def _shares(episode: Episode, penalty: NDArray[np.float64]) -> dict[int, float]:
    """Sums the penalty by turn. `penalty` has one entry per sampled token, turn after turn."""
    own = episode.own_turns
    borders = np.cumsum([0, *map(episode.trained, own)])
    return {
        turn.index: float(penalty[start:end].sum()) for turn, (start, end) in zip(own, pairwise(borders), strict=True)
    }


def _turns(episode: Episode, penalty: NDArray[np.float64]) -> Episode:
    shares = _shares(episode, penalty)
    return msgspec.structs.replace(
        episode,
        turns=[
            msgspec.structs.replace(turn, reward=immediate(turn) + shares[turn.index]) if turn.index in shares else turn
            for turn in episode.turns
        ],
    )
