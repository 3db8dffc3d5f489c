"""Aggregation as a weight for every token, so that neither packing nor branches nor accumulation can change it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.train.loss_settings import Aggregation
from agentrl.train.row import Row


def token_weights(
    rows: Sequence[Row], aggregation: Aggregation, token_norm: float | None = None
) -> list[NDArray[np.float32]]:
    """The weight of every token of every row in the loss of one optimiser step; 0 where the row does not train.

    A sequence is an episode, whatever the number of its rows. With N trained tokens in all, S episodes that train
    any, and n in the token's episode, the weight is 1 / N (`token_mean`), 1 / (S n) (`seq_mean_token_mean`), 1 / S
    (`seq_mean_token_sum`) or 1 / token_norm (`seq_mean_token_sum_norm`, as verl computes it: not divided by S).

    Args:
        rows: ALL rows of the step, so that accumulation over packs leaves the result alone.
    """
    trained: dict[str, int] = {}
    for row in rows:
        trained[row.episode_id] = trained.get(row.episode_id, 0) + int(row.loss_mask.sum())
    total = sum(trained.values())
    sequences = sum(count > 0 for count in trained.values())

    def weight(episode_id: str) -> float:
        match aggregation:
            case "token_mean":
                return 1 / max(total, 1)
            case "seq_mean_token_mean":
                return 1 / max(sequences * trained[episode_id], 1)
            case "seq_mean_token_sum":
                return 1 / max(sequences, 1)
            case "seq_mean_token_sum_norm":
                assert token_norm is not None
                return 1 / token_norm

    return [row.loss_mask.astype(np.float32) * np.float32(weight(row.episode_id)) for row in rows]
