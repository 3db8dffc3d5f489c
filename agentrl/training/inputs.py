"""Checks of what a trainer is given: samples, and the frozen policies that its loss reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.training.losses.loss import ANCHORS
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample


def check_anchors(needs: Collection[str], given: Mapping[str, Any]) -> None:
    """Raises if a policy that KL or the loss needs is missing."""
    for name in ANCHORS:
        if name in needs and given.get(name) is None:
            raise lacks(name)


def lacks(anchor: str) -> TrainError:
    """Returns the error that the trainer has no such policy."""
    key = "" if anchor == "reference" else f", or train: {{{anchor}: ...}}"
    remedy = f"Trainer(..., {anchor}=model){key}" if anchor != "ema_reference" else "train: {ema_reference: {}}"
    return TrainError(f"KL and the loss need a policy that the trainer has not: {anchor}", place="train", remedy=remedy)


def teaches(samples: Iterable[TrainingSample]) -> bool:
    """Returns True if a sample has an advantage."""
    return any(sample.advantage.any() for sample in samples)


def check_samples(samples: Sequence[TrainingSample]) -> None:
    """Raises if no token trains, or an input of the loss is not finite."""
    if not any(sample.loss_mask.any() for sample in samples):
        raise TrainError(
            f"{len(samples)} training samples without a token to train on", remedy="check that the episodes have turns"
        )
    for sample in samples:
        for name, values in (("advantage", sample.advantage), ("engine's log-probability", sample.behaviour_logprob)):
            if not np.isfinite(values[sample.loss_mask]).all():
                raise TrainError(
                    f"episode {sample.episode_id}, branch {sample.branch_id}: an {name} is not finite",
                    remedy="inspect the episode with `agentrl show`: a reward or the engine returned this value",
                )


def not_finite(what: str, samples: Sequence[TrainingSample], step: int) -> TrainError:
    """Returns the error that a loss or a gradient is not finite."""
    ids = list(dict.fromkeys(sample.episode_id for sample in samples))
    more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
    return TrainError(
        f"the {what} of step {step} is not finite (episodes {', '.join(ids[:8])}{more}); the step was not taken",
        remedy="lower train.lr or train.max_grad_norm, and check these episodes' rewards and log-probabilities",
    )
