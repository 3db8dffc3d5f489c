"""Attention over a pack: the queries of a segment see the keys on the segment's path through the prefix tree.

Transformers' attention interface calls the registered function and passes on the keyword `tree` that the model
receives. Segments of similar size are stacked into one call of `scaled_dot_product_attention`, with keys and values
gathered along the paths. On CUDA in half precision, one call of a variable-length kernel (flash attention) computes all
segments, without padding and masks.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from agentrl.training.model.packing import Pack, Segment
from agentrl.types.errors import TrainError

NAME = "agentrl_tree"

CALL_COST = 2048
"""Cost of one more attention call in (query, key) pairs: segments are stacked while that adds less padding than this.
Measured on one CPU thread with a width of 64: 512 branches of 10 tokens train in 0.27 s, without stacking in 0.42 s.
Values from 0 to 8192 perform equally; beyond that, padding costs more than the saved calls."""


PLAIN = 2**16
"""Up to this number of (query, key) pairs, attention in half precision on a CPU is computed by plain products, scores
in float32: SDPA's kernel is slower for small sizes, above all in its gradient, which is also less exact. The weights of
all pairs are stored for the gradient, hence the second bound, for all stacks of a pack."""

PLAIN_IN_ALL = 2**18


@dataclass(frozen=True)
class Stack:
    """B segments in one call. `queries` [B * Lq] and `keys` [B * Lk] are pack positions, padded with 0.

    `last_seen` int64 [B, Lq]: query q sees the keys 0 .. last_seen[q] of its path.
    `mask` [B, 1, Lq, Lk] is added to the scores: 0 where a query sees a key, else -inf. None: causal.
    `plain`: attention is computed by plain products.
    """

    size: int
    queries: Tensor
    keys: Tensor
    last_seen: Tensor
    mask: Tensor | None
    plain: bool = False

    def visible(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The additive mask [B, 1, Lq, Lk] with which a query sees its last `window` keys (None: all)."""
        last = self.last_seen[:, None, :, None]
        number = torch.arange(len(self.keys) // self.size, device=last.device)
        hidden = number > last if window is None else (number > last) | (number <= last - window)
        return torch.zeros(hidden.shape, dtype=dtype, device=last.device).masked_fill_(hidden, -torch.inf)


@dataclass(frozen=True)
class Ragged:
    """All segments in one call of a variable-length kernel. The queries are in the order of the pack.

    `keys` [sum of path lengths] are pack positions. `query_ends`, `key_ends` int32 [segments + 1] start with 0.
    `dtype` is the half-precision input type of the kernel. Autocast does not apply it: with float32 weights, the rotary
    embedding returns queries and keys in float32, and values are in bfloat16.
    """

    keys: Tensor
    query_ends: Tensor
    key_ends: Tensor
    most_queries: int
    most_keys: int
    dtype: torch.dtype

    @classmethod
    def of(cls, pack: Pack, device: torch.device, dtype: torch.dtype) -> Ragged:
        """The segments of `pack`; the keys of each are its path."""
        queries = [segment.end - segment.start for segment in pack.segments]
        keys = [len(segment.path) for segment in pack.segments]
        query_ends, key_ends = (
            torch.tensor(np.cumsum([0, *sizes]), dtype=torch.int32, device=device) for sizes in (queries, keys)
        )
        path = torch.from_numpy(np.concatenate([segment.path for segment in pack.segments])).to(device)
        return cls(path, query_ends, key_ends, max(queries), max(keys), dtype)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None = None
    ) -> Tensor:
        """Attention output [T, H, D] of queries [T, H, D] and of keys and values [T, H', D]. A query sees the last
        `window` tokens of its path, itself included (None: all)."""
        from torch.nn.attention.varlen import varlen_attn

        times = query.shape[1] // key.shape[1]
        key, value = (self._on_paths(x) for x in (key, value))
        shared: dict[str, Any] = {"enable_gqa": times > 1}
        if "enable_gqa" not in kernel_takes():  # torch 2.11
            key, value, shared = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1), {}
        attended = varlen_attn(
            query.to(self.dtype),
            key,
            value,
            self.query_ends,
            self.key_ends,
            self.most_queries,
            self.most_keys,
            scale=scaling,
            # Causal, aligned at the ends of queries and keys. `window` counts the query's own token.
            window_size=(-1 if window is None else window - 1, 0),
            **shared,
        )
        assert isinstance(attended, Tensor)
        return attended

    def _on_paths(self, states: Tensor) -> Tensor:
        """Keys or values [T, H', D], gathered along the paths. The gather is in float32: gradients of tokens that many
        segments share are summed in float32 and rounded once."""
        rows = functional.embedding(self.keys, states.float().flatten(1))
        return rows.view(-1, *states.shape[1:]).to(self.dtype)


@dataclass(frozen=True)
class TreeAttention:
    """The attention of a pack on a device: `ragged` or stacks. `order` [T] is the position of each token in the
    concatenated outputs of the stacks."""

    stacks: list[Stack]
    order: Tensor
    longest: int
    dtype: torch.dtype
    ragged: Ragged | None = None
    windowed: dict[int, list[Tensor]] = field(default_factory=dict)

    def masks(self, window: int | None) -> Sequence[Tensor | None]:
        """The mask of each stack for a sliding window (None: full attention); computed once for all layers."""
        if window is None or window >= self.longest:
            return [stack.mask for stack in self.stacks]
        if window not in self.windowed:
            self.windowed[window] = [stack.visible(window, self.dtype) for stack in self.stacks]
        return self.windowed[window]

    @classmethod
    def of(cls, pack: Pack, device: torch.device, dtype: torch.dtype) -> TreeAttention:
        """Stacks the segments of `pack`. The masks take sum(B * Lq * Lk) elements of `dtype`."""
        longest = max((len(segment.path) for segment in pack.segments), default=0)
        half = dtype in (torch.float16, torch.bfloat16)
        if device.type == "cuda" and half and "window_size" in kernel_takes():
            return cls([], torch.empty(0), longest, dtype, Ragged.of(pack, device, dtype))
        stacks, order, at = [], np.empty(len(pack.token_ids), np.int64), 0
        grouped = _stacked(pack.segments)
        few = _few_pairs(grouped) if half and device.type == "cpu" else set()
        for number_of_stack, segments in enumerate(grouped):
            query_length = max(segment.end - segment.start for segment in segments)
            key_length = max(len(segment.path) for segment in segments)
            queries = np.zeros((len(segments), query_length), np.int64)
            keys = np.zeros((len(segments), key_length), np.int64)
            # Padding queries see all keys: a row of -inf gives NaN, also in the gradient of dropped outputs.
            last_seen = np.full((len(segments), query_length), key_length - 1)
            for number, segment in enumerate(segments):
                new = segment.end - segment.start
                queries[number, :new] = np.arange(segment.start, segment.end)
                keys[number, : len(segment.path)] = segment.path
                last_seen[number, :new] = np.arange(len(segment.path) - new, len(segment.path))
                order[segment.start : segment.end] = at + number * query_length + np.arange(new)
            at += queries.size
            flat_queries, flat_keys = (torch.from_numpy(index.reshape(-1)).to(device) for index in (queries, keys))
            stack = Stack(len(segments), flat_queries, flat_keys, torch.from_numpy(last_seen).to(device), None)
            causal = len(segments) == 1 and query_length == key_length
            plain = number_of_stack in few
            masked = replace(stack, mask=stack.visible(None, dtype), plain=plain) if plain or not causal else stack
            stacks.append(masked)
        return cls(stacks, torch.from_numpy(order).to(device), longest, dtype)


def kernel_takes() -> frozenset[str]:
    """The parameters of the variable-length kernel; empty if torch is older than 2.10 and lacks it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def _stacked(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Groups segments of similar size, longest first, while padding costs less than another call."""
    stacks: list[list[Segment]] = []
    width = depth = 0
    for segment in sorted(segments, key=lambda s: (-len(s.path), s.end - s.start, s.start)):
        new = segment.end - segment.start
        wider = max(width, new)
        if stacks:
            padded = (len(stacks[-1]) + 1) * wider * depth - len(stacks[-1]) * width * depth
            if padded - new * len(segment.path) <= CALL_COST:
                stacks[-1].append(segment)
                width = wider
                continue
        stacks.append([segment])
        width, depth = new, len(segment.path)
    return stacks


def _few_pairs(stacks: Sequence[Sequence[Segment]]) -> set[int]:
    """The smallest stacks, as far as `PLAIN` and `PLAIN_IN_ALL` allow."""
    pairs = [len(stack) * max(s.end - s.start for s in stack) * max(len(s.path) for s in stack) for stack in stacks]
    found: set[int] = set()
    left = PLAIN_IN_ALL
    for number in sorted(range(len(stacks)), key=lambda number: pairs[number]):
        left -= pairs[number]
        if pairs[number] > PLAIN or left < 0:
            break
        found.add(number)
    return found


_BEYOND = {"softcap": "caps its attention scores", "s_aux": "has attention sinks"}
"""Features beyond scaled dot products that a model may request from its attention, by keyword argument."""


def tree_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: TreeAttention | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a pack, with the signature that transformers expects.

    Args:
        query: [1, H, T, D]; `key` and `value` [1, H', T, D or D'], where H' divides H.

    Returns:
        [1, T, H, D'], and None for the weights.

    Raises:
        TrainError: the model does not pass `tree` on to its attention, or needs more than scaled dot products (score
            caps, sinks).
    """
    for name, what in _BEYOND.items():
        if others.get(name) is not None:
            raise TrainError(f"{type(module).__name__} {what} ({name}), which packed attention does not", remedy=REMEDY)
    if tree is None:
        raise TrainError(f"{type(module).__name__} does not receive the pack's tree", remedy=REMEDY)
    if tree.ragged is not None:
        packed = (x[0].transpose(0, 1) for x in (query, key, value))
        return tree.ragged.attend(*packed, scaling=scaling, window=sliding_window)[None], None
    heads, kv_heads = query.shape[1], key.shape[1]
    flat_query, flat_key, flat_value = (x[0].transpose(0, 1).flatten(1) for x in (query, key, value))
    outputs = []
    for stack, mask in zip(tree.stacks, tree.masks(sliding_window), strict=True):
        asked = _gather(flat_query, stack.queries, stack.size, heads)
        seen, said = (_gather(flat, stack.keys, stack.size, kv_heads) for flat in (flat_key, flat_value))
        if stack.plain and mask is not None:
            attended = plain_attention(asked, seen, said, mask, scaling)
        else:
            attended = functional.scaled_dot_product_attention(
                asked, seen, said, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=heads != kv_heads
            )
        outputs.append(attended.transpose(1, 2).flatten(0, 1).flatten(1))
    output = functional.embedding(tree.order, torch.cat(outputs))
    return output.view(1, len(output), heads, -1), None


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Attention with float32 scores, inputs as of `scaled_dot_product_attention`. Returns [B, H, Lq, D'] as `value`."""
    batch, heads, length, width = query.shape
    with torch.autocast(query.device.type, enabled=False):
        # Consecutive query heads share a key head.
        query = (query.float() * (width**-0.5 if scaling is None else scaling)).reshape(batch, key.shape[1], -1, width)
        scores = torch.matmul(query, key.float().transpose(2, 3)).view(batch, heads, length, -1) + mask
        weights = scores.softmax(-1).to(value.dtype).view(batch, key.shape[1], -1, scores.shape[-1])
        return torch.matmul(weights, value).view(batch, heads, length, -1)


def _gather(rows: Tensor, index: Tensor, size: int, heads: int) -> Tensor:
    """Rows [T, H * D] at `index` [B * L], as [B, H, L, D]. Uses an embedding, whose backward is a fast ordered sum."""
    return functional.embedding(index, rows).view(size, index.shape[0] // size, heads, -1).transpose(1, 2)


AttentionInterface.register(NAME, tree_attention_forward)

REMEDY = "train.packing: rows (or auto) trains the model with its own attention, one row per branch"


@contextmanager
def tree_attention(model: nn.Module) -> Iterator[None]:
    """Within the block, forward passes of `model` (of transformers) use tree attention with their argument `tree`."""
    whole: Any = model.config
    config = whole.get_text_config()  # the tower of a model that sees keeps its attention
    before = config._attn_implementation
    # Not set_attn_implementation, which visits all modules: this runs in every forward pass.
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
