"""Episodes as pre-tokenised data sets for TRL's SFTTrainer and DPOTrainer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from agentrl.estimators.pairs import best_and_worst, check_prompts
from agentrl.types.episode import Episode
from agentrl.types.errors import TrainError, needs
from agentrl.types.figures.of_episodes import earned
from agentrl.types.figures.sums import reaches
from agentrl.types.sample import TrainingSample, learned_samples

with needs("trl"):
    import datasets

IGNORED = -100
"""Label of tokens without loss in transformers."""


def sft_rows(episodes: Iterable[Episode], *, min_reward: float | None = None) -> list[TrainingSample]:
    """Returns the rows of model-sampled episodes, for imitation.

    For demonstrations of a script, whose tokens are bytes, use `SupervisedConversation.samples` instead.

    Args:
        min_reward: minimum reward of an episode; None: all scored episodes.
    """
    least = -math.inf if min_reward is None else min_reward
    chosen = (e for e in episodes if (value := earned(e)) is not None and reaches(value, least))
    return [row for episode in chosen for row in learned_samples(episode)]


def sft_dataset(rows: Sequence[TrainingSample]) -> datasets.Dataset:
    """Makes a data set for SFTTrainer: `input_ids`, and `labels` with -100 at tokens without loss.

    Set `max_length=None` in SFTConfig: its default of 1,024 cuts longer rows.

    Raises:
        TrainError: no rows.
    """
    if not rows:
        raise TrainError("no rows for a data set", remedy="lower min_reward, or collect further episodes")
    labels = [np.where(row.loss_mask, row.token_ids, IGNORED) for row in rows]
    return datasets.Dataset.from_dict(
        {"input_ids": [row.token_ids.tolist() for row in rows], "labels": [each.tolist() for each in labels]}
    )


def preference_dataset(episodes: Iterable[Episode], *, min_gap: float = 1e-6) -> datasets.Dataset:
    """Makes a data set for `EpisodeDPOTrainer`: the best against the worst episode of each group.

    Columns: `prompt_ids`, the common prefix; `chosen_ids`, `rejected_ids`, the rest; `chosen_mask`, `rejected_mask`, 1
    at the policy's replies. Skips groups whose rewards differ by less than `min_gap`, and episodes of several branches,
    which are not one sequence.

    Raises:
        TrainError: no group is left.
    """
    whole = [episode for episode in episodes if episode.scored and len(learned_samples(episode)) == 1]
    return datasets.Dataset.from_list([_pair(*pair) for pair in best_and_worst(whole, earned, min_gap=min_gap)])


def _pair(chosen: Episode, rejected: Episode) -> dict[str, Any]:
    check_prompts(chosen, rejected)
    sides = {"chosen": learned_samples(chosen)[0], "rejected": learned_samples(rejected)[0]}
    start = min(row.prompt_size for row in sides.values())
    pair: dict[str, Any] = {"prompt_ids": sides["chosen"].token_ids[:start].tolist()}
    for name, row in sides.items():
        pair[f"{name}_ids"] = row.token_ids[start:].tolist()
        pair[f"{name}_mask"] = row.loss_mask[start:].astype(int).tolist()
    return pair
