"""Groups whose gradients are added up for one optimiser step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agentrl.training.model.packing import Floats
from agentrl.training.stats import Stats
from agentrl.types.sample import TrainingSample


@dataclass
class Accumulated:
    """The groups whose gradients are added up for the next step.

    Attributes:
        seen: the policy's log-probabilities, by sample.
        waiting: groups without an advantage, until one with an advantage comes: only then there is an entropy bonus.
    """

    stats: Stats = field(default_factory=Stats)
    samples: list[TrainingSample] = field(default_factory=list)
    seen: list[Floats] = field(default_factory=list)
    waiting: list[Sequence[TrainingSample]] = field(default_factory=list)

    def add(self, samples: Sequence[TrainingSample], seen: Sequence[Floats]) -> None:
        """Adds the samples of a call."""
        self.samples += samples
        self.seen += seen

    def differ_from(self, samples: Sequence[TrainingSample]) -> str | None:
        """Names the first sample that is missing or has another advantage; None: all are equal."""
        known = {(each.episode_id, each.branch_id): each for each in self.samples}
        for each in samples:
            own = known.pop((each.episode_id, each.branch_id), None)
            if own is None or not (
                np.array_equal(own.advantage, each.advantage) and np.array_equal(own.loss_mask, each.loss_mask)
            ):
                return f"episode {each.episode_id} trains with another advantage than alone in its group"
        return f"episode {next(iter(known))[0]} does not train" if known else None
