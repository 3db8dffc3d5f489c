"""How old the policy was that sampled what trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentrl.types.sample import TrainingSample


def staleness(samples: Sequence[TrainingSample], version: int) -> dict[str, Any]:
    """Updates between the sampling of a trained token and its training, over all trained tokens.

    Args:
        version: of the policy that is about to be trained.

    Returns:
        staleness_mean, staleness_max; staleness: by its value, the share of the tokens; mixed_versions: the share of
        samples that several versions sampled. Nothing if the engine told no versions.
    """
    ages: Counter[int] = Counter()
    for sample in samples:
        for span in sample.versions:
            ages[version - span.version] += int(sample.loss_mask[span.start : span.end].sum())
    total = sum(ages.values())
    if not total:
        return {}
    return {
        "staleness_mean": sum(age * count for age, count in ages.items()) / total,
        "staleness_max": max(ages),
        "staleness": {str(age): ages[age] / total for age in sorted(ages)},
        "mixed_versions": sum(len({span.version for span in sample.versions}) > 1 for sample in samples) / len(samples),
    }
