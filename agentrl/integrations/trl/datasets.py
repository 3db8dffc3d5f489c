"""Episodes as data sets that TRL's SFTTrainer and DPOTrainer take without tokenising anything."""

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
"""The label of a token without loss, as transformers has it."""


def sft_rows(episodes: Iterable[Episode], *, min_reward: float | None = None) -> list[TrainingSample]:
    """The rows of episodes that a model sampled, for imitation.

    Demonstrations of a script, whose tokens are bytes, come from `train.conversation.Conversation.samples` instead.

    Args:
        min_reward: only episodes that earned so much; None: all that were scored.
    """
    least = -math.inf if min_reward is None else min_reward
    chosen = (e for e in episodes if (value := earned(e)) is not None and reaches(value, least))
    return [row for episode in chosen for row in learned_samples(episode)]


def sft_dataset(rows: Sequence[TrainingSample]) -> datasets.Dataset:
    """For SFTTrainer: `input_ids`, and `labels` that are -100 where a row does not train.

    Give SFTConfig `max_length=None`: its default of 1,024 cuts longer rows.

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
    """For `EpisodeDPOTrainer`: of every group its best episode against its worst.

    Columns: `prompt_ids`, what both begin with; `chosen_ids`, `rejected_ids`, the rest; and `chosen_mask`,
    `rejected_mask`, 1 in the policy's replies. Groups whose rewards differ by less than `min_gap`, and episodes of
    several branches (which are no one sequence), are left out.

    Raises:
        TrainError: no group is left.
    """
    whole = [episode for episode in episodes if episode.scored and len(learned_samples(episode)) == 1]
    return datasets.Dataset.from_list([_pair(*pair) for pair in best_and_worst(whole, earned, min_gap=min_gap)])


def _pair(chosen: Episode, rejected: Episode) -> dict[str, Any]:
    check_prompts(chosen, rejected)
    sides = {"chosen": learned_samples(chosen)[0], "rejected": learned_samples(rejected)[0]}
    start = min(int(np.flatnonzero(row.loss_mask)[0]) for row in sides.values())
    pair: dict[str, Any] = {"prompt_ids": sides["chosen"].token_ids[:start].tolist()}
    for name, row in sides.items():
        pair[f"{name}_ids"] = row.token_ids[start:].tolist()
        pair[f"{name}_mask"] = row.loss_mask[start:].astype(int).tolist()
    return pair
