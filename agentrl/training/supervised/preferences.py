"""Preference training besides the loss: KTO's baseline, and metrics of the separation of good and bad episodes.

An episode's `reward` is its label, a `group` a pair (`losses/preference.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from agentrl.training.model.packing import Floats
from agentrl.types.sample import TrainingSample


class Logprobs(Protocol):
    """`Trainer.logprobs`."""

    def __call__(self, samples: Sequence[TrainingSample], *, under: str = "policy") -> list[Floats]: ...


def with_baseline(samples: Sequence[TrainingSample], logprobs: Logprobs) -> list[TrainingSample]:
    """The samples with KTO's baseline z as their advantage.

    z is the mean log-ratio of policy to reference over the step's prompts, each paired with the reply to another
    prompt, and at least 0 (Ethayarajh et al., 2024).
    """
    strangers = mismatched(samples)
    z = 0.0
    if strangers:
        ratios = zip(logprobs(strangers), logprobs(strangers, under="reference"), strict=True)
        z = max(0.0, float(np.mean([np.sum(own - other, dtype=np.float64) for own, other in ratios])))
    return [replace(sample, advantage=np.where(sample.loss_mask, z, 0).astype(np.float32)) for sample in samples]


def mismatched(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The prompt of each sample, followed by the tokens after the prompt of the next sample of another group. Empty if
    there is only one group."""
    found = []
    for index, sample in enumerate(samples):
        others = (samples[(index + k) % len(samples)] for k in range(1, len(samples)))
        other = next((each for each in others if each.group_id != sample.group_id), None)
        if other is not None:
            found.append(_followed_by(sample, other))
    return found


def _followed_by(sample: TrainingSample, other: TrainingSample) -> TrainingSample:
    prompt, start = sample.prompt_size, other.prompt_size
    rest = other.loss_mask[start:]
    mask = np.concatenate([np.zeros(prompt, np.bool_), rest])
    nothing = np.zeros(len(mask), np.float32)
    ids = np.concatenate([sample.token_ids[:prompt], other.token_ids[start:]])
    return TrainingSample(
        ids,
        mask,
        nothing,
        nothing,
        sample.episode_id,
        sample.group_id,
        sample.branch_id,
        sample.temperature,
        images=tuple({*sample.images, *other.images}),
    )


def preference_metrics(
    samples: Sequence[TrainingSample], logprobs: Sequence[Floats], reference: Sequence[Floats] | None
) -> dict[str, float]:
    """Mean log-probabilities of good and bad episodes in nats: with a reference policy, log-ratios to it summed over
    tokens; else means over tokens.

    Returns:
        chosen, rejected; margin: their difference; accuracy: among the groups with good and bad episodes, the share in
        which the good ones have the higher mean. Metrics without data are omitted.
    """
    sums: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for index, sample in enumerate(samples):
        known = 0.0 if reference is None else reference[index]
        gain = float(np.sum(logprobs[index] - known, where=sample.loss_mask, dtype=np.float64))
        sums[sample.episode_id] = sums.get(sample.episode_id, 0.0) + gain
        sizes[sample.episode_id] = sizes.get(sample.episode_id, 0) + int(sample.loss_mask.sum())
    if reference is None:
        sums = {id: value / max(sizes[id], 1) for id, value in sums.items()}
    groups: dict[str, dict[bool, dict[str, float]]] = {}
    for sample in samples:
        if sample.reward > 1:  # a gold reply is imitated, not compared
            continue
        sides = groups.setdefault(sample.group_id, {True: {}, False: {}})
        sides[sample.reward > 0][sample.episode_id] = sums[sample.episode_id]
    good, bad = ([v for sides in groups.values() for v in sides[which].values()] for which in (True, False))
    both = [sides for sides in groups.values() if sides[True] and sides[False]]
    right = [np.mean([*sides[True].values()]) > np.mean([*sides[False].values()]) for sides in both]
    found = {"chosen": good, "rejected": bad, "accuracy": right}
    metrics = {name: float(np.mean(values)) for name, values in found.items() if values}
    return metrics | ({"margin": metrics["chosen"] - metrics["rejected"]} if good and bad else {})
