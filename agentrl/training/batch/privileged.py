"""Fields of the task that the reward model is shown, and the policy is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentrl.chat.renderer import Renderer
from agentrl.rollouts.hindsight import aside
from agentrl.training.backend import Floats
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError
from agentrl.types.sample import TrainingSample
from agentrl.types.task import Task

NOTE = "A reference, which the one who replies does not see: {reference}"


@dataclass(frozen=True)
class Privileged:
    """A field of the task's data, as a message before the first trained turn of every sample.

    Attributes:
        key: of the field.
    """

    renderer: Renderer
    key: str

    def shown(self, samples: Sequence[TrainingSample], episodes: Sequence[Episode]) -> list[TrainingSample]:
        """Returns the samples with the message.

        Raises:
            CreditError: a task does not have the field.
        """
        notes = {episode.id: reference_of(episode.task, self.key) for episode in episodes}
        return [self._with(sample, NOTE.format(reference=notes[sample.episode_id])) for sample in samples]

    def hidden(self, samples: Sequence[TrainingSample], values: Sequence[Floats]) -> list[Floats]:
        """Returns values of the tokens of `shown(samples)` without those of the message."""
        begins = [sample.prompt_size for sample in samples]
        rows = zip(samples, begins, values, strict=True)
        return [np.concatenate([row[:at], row[len(row) - (len(own.token_ids) - at) :]]) for own, at, row in rows]

    def _with(self, sample: TrainingSample, note: str) -> TrainingSample:
        at = sample.prompt_size
        said = np.array(aside(self.renderer, sample.token_ids[:at].tolist(), note), np.int64)
        count = len(said)
        return replace(
            sample,
            token_ids=np.insert(sample.token_ids, at, said),
            loss_mask=np.insert(sample.loss_mask, at, np.zeros(count, np.bool_)),
            behaviour_logprob=np.insert(sample.behaviour_logprob, at, np.zeros(count, np.float32)),
            advantage=np.insert(sample.advantage, at, np.zeros(count, np.float32)),
            turn_spans=[(turn, start + count, end + count) for turn, start, end in sample.turn_spans],
            span_ends=[end + count for end in sample.span_ends],
            versions=[],
        )


def reference_of(task: Task, key: str) -> str:
    """Returns the field of a task as text.

    Raises:
        CreditError: the task does not have it.
    """
    found = task.data.get(key)
    if found in (None, "", []):
        raise CreditError(
            f"data[{key!r}] is {found!r}, and the reward model is shown it",
            place=f"task {task.id}",
            remedy="give every task the field, or name another one: train.reward_model.sees",
        )
    return " | ".join(map(str, found)) if isinstance(found, list | tuple) else str(found)
