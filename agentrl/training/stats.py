"""The metrics of an update: sums over trained tokens and lists over steps, averaged at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective, importance_weight, kl_loss
from agentrl.training.model.packing import Floats, Pack
from agentrl.training.parallel.ranks import Ranks
from agentrl.types.sample import TrainingSample


@dataclass
class Stats:
    """Counters of the passes of one `update` or `sft`."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    forwarded: int = 0
    row_tokens: int = 0
    router_loss: float = 0.0

    def add_pack(self, packed: Pack, samples: Sequence[TrainingSample]) -> None:
        """Counts the tokens of a pack, and the tokens of its samples without shared prefixes."""
        self.tokens += len(packed.prediction_index)
        self.forwarded += len(packed.token_ids)
        self.row_tokens += sum(len(samples[index].token_ids) for index in packed.samples)

    def add_tokens(self, batch: TokenBatch, clipped: Tensor, entropy: Tensor, objective: Objective) -> None:
        """Sums over the tokens of one pack."""
        with torch.no_grad():
            log_ratio = batch.log_ratio
            ratio = log_ratio.exp()
            columns = {
                "ratio_mean": ratio,
                "clip_fraction": clipped.float(),
                "entropy": entropy,
                "kl_old": ratio - 1 - log_ratio,
            }
            if objective.kl is not None:
                columns["kl_ref"] = kl_loss(batch, objective.kl)
            if objective.importance is not None:
                weight = importance_weight(batch, objective.importance)
                columns["importance_mean"] = weight
                columns["importance_cut"] = ((weight == 0) | (weight == objective.importance.high)).float()
            sums = torch.stack([column.sum() for column in columns.values()]).tolist()
        for name, value in zip(columns, sums, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value

    def summary(self, ranks: Ranks) -> dict[str, float]:
        """Means over tokens and steps, and the counts, over all ranks."""
        counts = ranks.all_reduce_by_name(
            {"tokens": self.tokens, "forwarded": self.forwarded, "row_tokens": self.row_tokens}
        )
        routers = ranks.all_reduce_by_name({"router_loss": self.router_loss})["router_loss"] / max(len(self.losses), 1)
        return {
            **({"router_loss": routers} if routers else {}),
            "loss": float(np.mean(self.losses)),
            "grad_norm": float(np.mean(self.grad_norms)),
            **{name: value / max(counts["tokens"], 1) for name, value in ranks.all_reduce_by_name(self.sums).items()},
            "tokens": float(counts["tokens"]),
            "forwarded": float(counts["forwarded"]),
            "packing_ratio": counts["row_tokens"] / max(counts["forwarded"], 1),
        }


def mismatch(pairs: Iterable[tuple[TrainingSample, Floats]]) -> dict[str, float]:
    """|engine's log-probability - recomputed one| over the trained tokens of samples: mean and maximum."""
    gaps = np.concatenate([np.abs(sample.behaviour_logprob - values)[sample.loss_mask] for sample, values in pairs])
    return {"mismatch_mean": float(gaps.mean()), "mismatch_max": float(gaps.max())}
