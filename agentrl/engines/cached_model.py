"""A model with the arena that its forward passes read and write."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engines.attention import fold, use_grouped_attention
from agentrl.engines.kv_cache import KVArena


class CachedModel:
    """A causal language model whose keys and values lie in the rows of an arena.

    Args:
        settled: how the arena takes its memory (`KVArena`).
    """

    def __init__(self, model: PreTrainedModel, *, settled: bool = False) -> None:
        self.model = model
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.arena = KVArena(model, settled=settled)
        self._groups = use_grouped_attention(model)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor, *, keep: int) -> Tensor:
        """Logits of the last `keep` columns (0: all), of tokens that are stored where the arena was aimed at.

        Args:
            ids: int64 [rows, new], as `positions`.
            mask: bool [rows, 1, new, length], true where seen.
        """
        # Additive, made once here: given a bool mask, every layer would convert it anew.
        additive = torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill_(~mask, -torch.inf)
        output = self.model(
            input_ids=ids,
            attention_mask=fold(additive, self._groups),
            position_ids=positions,
            past_key_values=self.arena,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits
        return logits


def causal(slots: Tensor, length: int) -> Tensor:
    """The mask [rows, 1, new, length] under which a token in slot s sees the slots up to s. `slots`: [rows, new]."""
    return (torch.arange(length, device=slots.device) <= slots[:, :, None])[:, None]
