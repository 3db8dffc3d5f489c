"""The columns of the credit table that models compute: critic, reward model, reference policy and policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.estimators.registry import EpisodeCredit
from agentrl.training.auxiliary.models import CRITICS, REWARD_MODEL
from agentrl.training.backend import Column, Floats, TrainerBackend
from agentrl.training.batch.privileged import Privileged
from agentrl.training.losses.loss import COLUMN_OF
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample, by_turn, with_advantages

ByEpisode = dict[str, NDArray[Any]]
Samples = Mapping[str, list[TrainingSample]]
"""Of episodes, by their ids."""


class ModelColumns:
    """Computes the columns that the estimator needs, and trains critics and reward model on the resulting credit.

    Args:
        needs: columns that credit reads.
        models: the critics and the reward model that the trainer has.
        privileged: what the reward model is shown of a task; None: what the policy sees.
    """

    def __init__(
        self,
        needs: Collection[str],
        models: Collection[str],
        trainer: TrainerBackend,
        privileged: Privileged | None = None,
    ) -> None:
        self._trainer, self._privileged = trainer, privileged
        self._critics: list[Column] = [name for name in CRITICS if name in models]
        self._rewards: list[Column] = ["prm_logprob"] if REWARD_MODEL in models else []
        plain: list[Column] = [name for name in COLUMN_OF.values() if name in needs]
        self._names: list[Column] = [*plain, *self._critics, *self._rewards]

    async def measured(
        self, samples: list[TrainingSample], episodes: Sequence[Episode] = ()
    ) -> dict[Column, list[Floats]]:
        """By column, numbers of the samples' tokens.

        Args:
            episodes: those of the samples.
        """
        found = {name: await measured(self._trainer, name, samples) for name in self._names}
        if self._privileged is not None and self._rewards:
            found["prm_logprob"] = await self._in_private(self._privileged, samples, episodes, found)
        return found

    async def _in_private(
        self,
        privileged: Privileged,
        samples: list[TrainingSample],
        episodes: Sequence[Episode],
        found: Mapping[Column, list[Floats]],
    ) -> list[Floats]:
        """Returns log-probabilities whose ratio to the reference is that of both models where they see more."""
        shown = privileged.shown(samples, episodes)
        ours = await self._trainer.column("prm_logprob", shown)
        theirs = await self._trainer.logprobs(shown, reference=True)
        ratios = privileged.hidden(samples, [a - b for a, b in zip(ours, theirs, strict=True)])
        plain = found.get("ref_logprob")
        return ratios if plain is None else [a + b for a, b in zip(ratios, plain, strict=True)]

    def of(
        self, episodes: Sequence[Episode], samples_of: Samples, measured: Mapping[Column, list[Floats]]
    ) -> dict[str, ByEpisode]:
        """By column and episode id, as `CreditAssigner.assign` takes them.

        Args:
            measured: of the samples of all episodes, in order.
        """
        samples = [sample for episode in episodes for sample in samples_of[episode.id]]
        columns: dict[str, ByEpisode] = {name: by_turn(samples, found) for name, found in measured.items()}
        if "progress" in columns:
            columns["progress"] = _turn_ends(episodes, columns["progress"])
        return columns

    async def learn(
        self, episodes: Sequence[Episode], samples_of: Samples, credits: Sequence[EpisodeCredit]
    ) -> dict[str, float]:
        """Trains critics and reward model on these episodes, if they have turns. Returns metrics."""
        metrics: dict[str, float] = {}
        if not any(episode.own_turns for episode in episodes):  # the curriculum may have left none
            return metrics
        if "value" in self._critics:
            asked: list[TrainingSample] = []
            for credit in credits:
                targets = [np.nan if target is None else target for target in credit.value_targets or ()]
                asked += with_advantages(samples_of[credit.episode_id], credit.turn_advantages, targets)
            metrics |= await self._trainer.fit_column("value", asked, [sample.advantage for sample in asked])
        if learned := [name for name in (*self._critics, *self._rewards) if name != "value"]:
            samples = [
                sample
                for credit in credits
                for sample in with_advantages(samples_of[credit.episode_id], credit.turn_advantages)
            ]
            for name in learned:
                private = self._privileged if name in self._rewards else None
                seen = samples if private is None else private.shown(samples, episodes)
                metrics |= await self._trainer.fit_column(name, seen)
        return metrics


async def measured(trainer: TrainerBackend, name: Column, samples: list[TrainingSample]) -> list[Floats]:
    """A column of the samples' tokens."""
    if name == "ref_logprob":
        return await trainer.logprobs(samples, reference=True)
    return await trainer.column(name, samples)


def _turn_ends(episodes: Sequence[Episode], columns: ByEpisode) -> ByEpisode:
    """From token columns, the entry of each turn's last token; 0 for a turn without tokens."""
    out: ByEpisode = {}
    for episode in episodes:
        own = episode.own_turns
        ends = np.cumsum([episode.trained(turn) for turn in own])
        spoken = np.diff(ends, prepend=0) > 0
        out[episode.id] = np.zeros(len(own), np.float32)
        if spoken.any():
            out[episode.id][spoken] = columns[episode.id][ends[spoken] - 1]
    return out
