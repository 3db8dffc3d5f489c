"""The columns of the credit table that models compute: critic, reward model, reference policy and policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl.estimators.registry import CreditAssigner, EpisodeCredit
from agentrl.training.auxiliary.critic import Critic
from agentrl.training.auxiliary.models import CRITICS, REWARD_MODEL
from agentrl.training.auxiliary.reward_model import ImplicitRewardModel
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample, by_turn, with_advantages

Column = dict[str, NDArray[Any]]
Samples = Mapping[str, list[TrainingSample]]
"""Of episodes, by their ids."""


class ModelColumns:
    """Computes the columns that the estimator needs, and trains critics and reward model on the resulting credit."""

    def __init__(self, credit: CreditAssigner, trainer: Trainer) -> None:
        found = trainer.auxiliary
        self.critics = {name: cast(Critic, found[name]) for name in CRITICS if name in found}
        self.reward_model = cast(ImplicitRewardModel | None, found.get(REWARD_MODEL))
        self._trainer = trainer
        made: dict[str, Callable[[list[TrainingSample]], Column]] = {
            "entropy": lambda samples: by_turn(samples, trainer.entropies(samples)),
            "ref_logprob": lambda samples: by_turn(samples, trainer.logprobs(samples, reference=True)),
        }
        self._makers = {name: make for name, make in made.items() if name in credit.needs}

    def of(self, episodes: Sequence[Episode], samples_of: Samples) -> dict[str, Column]:
        """By column and episode id, as `CreditAssigner.assign` takes them."""
        if not self._makers and not self.critics and self.reward_model is None:
            return {}
        samples = [sample for episode in episodes for sample in samples_of[episode.id]]
        columns: dict[str, Column] = {name: make(samples) for name, make in self._makers.items()}
        if "value" in self.critics:
            columns["value"] = by_turn(samples, self.critics["value"].predict(samples))
        if "progress" in self.critics:
            columns["progress"] = _turn_ends(episodes, by_turn(samples, self.critics["progress"].predict(samples)))
        if self.reward_model is not None:
            columns["prm_logprob"] = by_turn(samples, self.reward_model.logprobs(samples))
        return columns

    def learn(
        self, episodes: Sequence[Episode], samples_of: Samples, credits: Sequence[EpisodeCredit]
    ) -> dict[str, float]:
        """Trains critics and reward model on these episodes, if they have turns. Returns metrics."""
        metrics: dict[str, float] = {}
        if not any(episode.own_turns for episode in episodes):  # the curriculum may have left none
            return metrics
        if "value" in self.critics:
            asked: list[TrainingSample] = []
            for credit in credits:
                targets = [np.nan if target is None else target for target in credit.value_targets or ()]
                asked += with_advantages(samples_of[credit.episode_id], credit.turn_advantages, targets)
            metrics |= self.critics["value"].fit_values(asked, [sample.advantage for sample in asked])
        samples = [
            sample
            for credit in credits
            for sample in with_advantages(samples_of[credit.episode_id], credit.turn_advantages)
        ]
        if "progress" in self.critics:
            metrics |= self.critics["progress"].fit_progress(samples)
        if self.reward_model is not None:
            metrics |= self.reward_model.fit(samples, self._trainer.logprobs(samples, reference=True))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The state of critics and reward model."""
        return {name: model.state_dict() for name, model in self._trainer.auxiliary.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state_dict`. A model that it does not contain starts from scratch."""
        for name, model in self._trainer.auxiliary.items():
            if name in state:
                model.load_state_dict(state[name])


def _turn_ends(episodes: Sequence[Episode], columns: Column) -> Column:
    """From token columns, the entry of each turn's last token; 0 for a turn without tokens."""
    out: Column = {}
    for episode in episodes:
        own = episode.own_turns
        ends = np.cumsum([episode.trained(turn) for turn in own])
        spoken = np.diff(ends, prepend=0) > 0
        out[episode.id] = np.zeros(len(own), np.float32)
        if spoken.any():
            out[episode.id][spoken] = columns[episode.id][ends[spoken] - 1]
    return out
