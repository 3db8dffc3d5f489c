"""Grouped-query attention over the engine's cache, without copies of keys and values.

With a mask, transformers' attention first repeats keys and values for each query head of a group: for a model of 135
million parameters and 64 rows of 460 tokens it writes 300 MB per layer and step, which takes 77 ms of one thread. Here
the query heads of a group are stacked like further tokens: 4.5 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "agentrl_grouped"

IN_CACHE = 2**21
"""Maximum number of elements of a layer's keys that fit into the processor's cache in float32."""


def use_grouped_attention(model: PreTrainedModel) -> int:
    """Replaces a model's attention by `grouped_attention_forward`, which gives the same results.

    Returns:
        Query heads per key head, the `groups` of `fold`. 1 for a model that keeps its own attention, because it needs
        more than scaled dot products or has one query head per key head.
    """
    config: Any = model.config.get_text_config()
    heads = config.num_attention_heads
    groups = int(heads // (getattr(config, "num_key_value_heads", None) or heads))
    replaceable = config._attn_implementation in ("sdpa", NAME) and getattr(model, "_supports_attention_backend", False)
    if groups == 1 or not replaceable:
        return 1
    config._attn_implementation = NAME
    return groups


@contextmanager
def own_attention(model: PreTrainedModel) -> Iterator[None]:
    """Restores SDPA attention within the block, if an engine has replaced it."""
    config: Any = model.config.get_text_config()
    before = config._attn_implementation
    if str(before).startswith("agentrl_"):
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before


def fold(mask: Tensor, groups: int) -> Tensor:
    """Repeats a mask [rows, 1, new, length] for stacked query heads. Done once per pass, for all layers.

    Returns:
        [rows, 1, groups * new, length]; unchanged if new is 1, which broadcasts.
    """
    return mask if groups == 1 or mask.shape[2] == 1 else mask.repeat(1, 1, groups, 1)


def grouped_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Grouped attention with transformers' signature. Calls SDPA attention if the mask is not folded.

    Args:
        query: [rows, H, new, D]; `key` and `value` [rows, H', length, D or D'], where H' divides H.

    Returns:
        [rows, new, H, D'], and None for the weights.
    """
    folded = query.shape[1] // key.shape[1] * query.shape[2]
    if attention_mask is None or attention_mask.shape[2] not in (1, folded):
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return output, None
    return grouped_attention(query, key, value, attention_mask, scaling), None


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Grouped-query attention. Arguments as for `grouped_attention_forward`, with a folded mask.

    Returns:
        [rows, new, H, D'].
    """
    rows, heads, new, width = query.shape
    # Consecutive query heads share a key head.
    query = query.reshape(rows, key.shape[1], -1, width)
    if new == 1 and key.dtype == torch.bfloat16 and key.is_cpu and key.numel() <= IN_CACHE:
        attended = _decode_step(query, key, value, mask, width**-0.5 if scaling is None else scaling)
    else:
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(rows, heads, new, -1).transpose(1, 2)


def _decode_step(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention with float32 scores. Faster than SDPA on a CPU for a few queries over a short bf16 cache
    (`python -m benchmarks.decode` measures a step)."""
    scores = torch.matmul(query.float().mul_(scaling), key.float().transpose(2, 3)).add_(mask)
    return torch.matmul(scores.softmax(-1).to(value.dtype), value)


# Calls of the model by other code get the masks and the attention of "sdpa".
AttentionInterface.register(NAME, grouped_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
