"""Attention over the engine's cache that reads keys and values where they lie.

Where several query heads share a key head, transformers' attention under a mask first repeats keys and values for each
of them: for a model of 135 million parameters, 64 rows of 460 tokens, that writes 300 MB a layer and step and takes
77 ms of one thread. Here the queries of a group stand one below the other as if they were further tokens: 4.5 ms.
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
"""Up to this number of elements, a layer's keys in float32 stay in the processor's cache."""


def use_grouped_attention(model: PreTrainedModel) -> int:
    """Has a model attend by `grouped_attention_forward`, which changes none of its results.

    Returns:
        Query heads to a key head: what to `fold` masks by. 1 for a model that keeps its own attention, because it
        asks for more than scaled dot products, or because that repeats nothing.
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
    """Within the block the model attends by SDPA, where an engine has given it another attention."""
    config: Any = model.config.get_text_config()
    before = config._attn_implementation
    if str(before).startswith("agentrl_"):
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before


def fold(mask: Tensor, groups: int) -> Tensor:
    """A mask [rows, 1, new, length] for queries that stand in groups; made once a pass, for all its layers.

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
    """Attention in the form that transformers calls. Under a mask that is not folded, transformers' own.

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
    """Attention of query heads in groups, [rows, new, H, D'], from what `grouped_attention_forward` takes; the mask is
    folded."""
    rows, heads, new, width = query.shape
    # Consecutive query heads share a key head.
    query = query.reshape(rows, key.shape[1], -1, width)
    if new == 1 and key.dtype == torch.bfloat16 and key.is_cpu and key.numel() <= IN_CACHE:
        attended = _decode_step(query, key, value, mask, width**-0.5 if scaling is None else scaling)
    else:
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(rows, heads, new, -1).transpose(1, 2)


def _decode_step(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention with float32 scores. On a CPU SDPA's blocks do not pay for a few queries over a short bf16 cache
    (`python -m benchmarks.decode` measures a step)."""
    scores = torch.matmul(query.float().mul_(scaling), key.float().transpose(2, 3)).add_(mask)
    return torch.matmul(scores.softmax(-1).to(value.dtype), value)


# Whoever else calls the model gets the masks and the attention of "sdpa".
AttentionInterface.register(NAME, grouped_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
