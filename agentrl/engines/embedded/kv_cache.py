"""KV caches: of running rows (`KVArena`), and of sessions between two turns (`Parked`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from agentrl.engines.embedded.forward.attention import own_attention
from agentrl.models.layers import recurrent_layers
from agentrl.types.errors import EngineError


class Held(Protocol):
    """A copy of a row's cache."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        ...


class RowArena(Protocol):
    """The caches of running requests, one row per request.

    Attributes:
        whole: whether a row's cache can only be copied whole, not cut to a prefix.
    """

    whole: bool

    def reserve(self, rows: int, slots: int) -> None:
        """Grows to at least `rows` rows of `slots` tokens."""
        ...

    def clear(self) -> None:
        """Frees all caches."""
        ...

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of a row."""
        ...

    def load(self, row: int, held: Any, length: int) -> None:
        """Copies the first `length` tokens of a saved cache (see `save`) into a row."""
        ...

    def save(self, row: int, length: int) -> Held:
        """A copy of the first `length` tokens of a row."""
        ...


@dataclass(frozen=True)
class Tensors:
    """Keys and values of a row, [kv_heads, length, head_dim] by layer, keys before values."""

    each: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Their size in bytes."""
        return sum(tensor.nbytes for tensor in self.each)


class KVArena(Cache):  # type: ignore[misc]
    """The KV cache of a batch of ragged rows, as a `Cache` of transformers.

    Each layer has two tensors [rows, kv_heads, slots, head_dim], keys and values, of which attention reads the first
    slots of some rows without a copy. The arena grows as needed, one layer at a time, to limit the peak memory. It
    starts with zeros: masked values are multiplied by zero, which would not remove NaN.

    Args:
        positions: store, besides keys and values, the position of the token that would follow each slot (`following`).
            It differs from the next slot if images have rows and columns.
    """

    whole = False

    def __init__(self, model: PreTrainedModel, *, positions: bool = False) -> None:
        # The parent's layers are not used: a model only calls `update` and `get_seq_length`.
        super().__init__(layers=[])
        shapes = cached_shapes(model)
        parameter = next(model.parameters())
        self._empty = [
            tuple(parameter.new_zeros((0, heads, 0, width)) for heads, width in shapes[layer])
            for layer in range(len(shapes))
        ]
        if positions:
            self._empty.append((parameter.new_zeros((0, 1, 0, 1), dtype=torch.int64),))
        self._layers = list(self._empty)
        self._real: Tensor | None = None
        self.aimed_rows: slice | Tensor = slice(None)
        self._places: dict[int, Tensor] = {}
        self.aimed_length: int | None = None

    @property
    def rows(self) -> int:
        """Number of reserved rows."""
        rows: int = self._layers[0][0].shape[0]
        return rows

    def reserve(self, rows: int, slots: int) -> None:
        """Grows to at least `rows` rows of `slots` tokens, and keeps the stored tokens.

        Raises:
            Exception: out of memory, as torch raises it; the arena is empty then.
        """
        have_rows, _, have_slots, _ = self._layers[0][0].shape
        if rows <= have_rows and slots <= have_slots:
            return
        new_rows, new_slots = have_rows, have_slots
        if rows > have_rows:
            new_rows = max(rows, min(2 * have_rows, have_rows + 64))
        if slots > have_slots:
            new_slots = max(slots, have_slots * 5 // 4) + 63 & ~63
        try:
            for number, pair in enumerate(self._layers):
                new = tuple(old.new_zeros((new_rows, old.shape[1], new_slots, old.shape[3])) for old in pair)
                for into, old in zip(new, pair, strict=True):
                    into[:have_rows, :, :have_slots] = old
                self._layers[number] = new
                del pair, old  # frees the old tensors: only one layer exists twice
        except BaseException:
            self.clear()  # otherwise layers would have different sizes
            raise

    @property
    def following(self) -> Tensor:
        """int64 [rows, slots], of an arena with `positions`."""
        memory: Tensor = self._layers[-1][0]
        return memory[:, 0, :, 0]

    def clear(self) -> None:
        """Frees all caches."""
        self._layers = list(self._empty)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of a row."""
        for memory in self._memories():
            memory[target, :, :length] = memory[source, :, :length]

    def load(self, row: int, held: Any, length: int) -> None:
        """Copies the first `length` tokens of a saved cache (see `save`) into a row."""
        for memory, saved in zip(self._memories(), held.each, strict=True):
            memory[row, :, :length] = saved[:, :length]

    def save(self, row: int, length: int) -> Tensors:
        """A copy of the first `length` tokens of a row."""
        return Tensors(tuple(memory[row, :, :length].clone() for memory in self._memories()))

    def aim(self, first: int, slots: Tensor, length: int, real: Tensor | None = None) -> None:
        """Sets the slots that the next forward pass reads and writes.

        Args:
            first: first row of the pass; the others follow it.
            slots: int64 [rows, new], slot of each new token.
            length: attention reads the slots below this one, under the caller's mask.
            real: bool [rows, new], the tokens to store. None: all.
        """
        count = slots.shape[0]
        rows = torch.arange(first, first + count, device=slots.device)[:, None].expand_as(slots)
        self._real = real
        self._at = (rows, slots) if real is None else (rows[real], slots[real])
        self.aimed_rows, self.aimed_length, self._places = slice(first, first + count), length, {}

    def aim_at(self, rows: Tensor, slots: Tensor, length: int) -> None:
        """Like `aim`, for arbitrary rows, int64 [rows]. Rows may repeat: tokens stored in the same pass see each other.
        Attention reads copies."""
        self._real, self._at = None, (rows[:, None].expand_as(slots), slots)
        self.aimed_rows, self.aimed_length, self._places = rows, length, {}

    def aim_tokens(self, rows: Tensor, slots: Tensor) -> None:
        """Sets the rows and slots, int64 [tokens] each, to which `store` writes the tokens of the next pass."""
        self._real, self._at, self._places = None, (rows, slots), {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Stores a layer's new keys and values, [rows, kv_heads, new, head_dim]. Called by transformers' attention."""
        keys, values = (x.transpose(1, 2) for x in (keys, values))
        if self._real is not None:
            keys, values = keys[self._real], values[self._real]
        self.store(keys, values, layer)
        return self.seen(self.aimed_rows, self.aimed_length, layer)

    def store(self, keys: Tensor, values: Tensor, layer: int) -> None:
        """Writes new keys and values, [..., kv_heads, head_dim], to the slots set by `aim`."""
        for memory, new in zip(self._layers[layer], (keys, values), strict=True):
            memory.view(-1, memory.shape[3]).index_copy_(0, self._place(memory), new.reshape(-1, memory.shape[3]))

    def seen(self, rows: slice | Tensor, length: int | None, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `length` slots of rows, [rows, kv_heads, length, head_dim]."""
        keys, values = (memory[rows, :, :length] for memory in self._layers[layer])
        return keys, values

    def _place(self, memory: Tensor) -> Tensor:
        """Indices of the new tokens' heads in a memory with flattened first dimensions. Computed once per pass."""
        _, heads, slots, _ = memory.shape
        if heads not in self._places:
            rows, at = (index.reshape(-1, 1) for index in self._at)
            head = torch.arange(heads, device=memory.device)
            self._places[heads] = ((rows * heads + head) * slots + at).view(-1)
        return self._places[heads]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Length of the cache. Models only call it when they are given no positions."""
        return self.aimed_length or 0

    def _memories(self) -> Iterator[Tensor]:
        return (memory for pair in self._layers for memory in pair)


class _Shapes(Cache):  # type: ignore[misc]
    """A cache that records only shapes by layer: (kv_heads, head_dim) of keys and of values."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.seen: dict[int, list[tuple[int, int]]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.seen[layer] = [(states.shape[1], states.shape[3]) for states in (keys, values)]
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def cached_shapes(model: PreTrainedModel) -> list[list[tuple[int, int]]]:
    """(kv_heads, head_dim) of keys and of values by layer.

    Raises:
        EngineError: a layer caches no keys and values, or something else.
    """
    if kinds := recurrent_layers(model.config):
        raise EngineError(f"layers of {type(model).__name__} keep a state of their own ({kinds})")
    shapes = _Shapes()
    one = torch.zeros((1, 1), dtype=torch.int64, device=next(model.parameters()).device)
    mask = torch.zeros((1, 1, 1, 1), dtype=next(model.parameters()).dtype, device=one.device)
    layers = model.config.get_text_config().num_hidden_layers
    try:
        with torch.no_grad(), own_attention(model):
            model(input_ids=one, position_ids=one, attention_mask=mask, past_key_values=shapes, use_cache=True)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise EngineError(f"{type(model).__name__} keeps more than keys and values: {error}") from error
    if sorted(shapes.seen) != list(range(layers)):
        raise EngineError(f"{len(shapes.seen)} of {layers} layers of {type(model).__name__} keep keys and values")
    return [shapes.seen[layer] for layer in range(layers)]


@dataclass(frozen=True)
class Parked:
    """The cache of a session between two turns: `memory` has exactly the tokens `token_ids`."""

    token_ids: list[int]
    memory: Held


class ParkingLot:
    """LRU cache of parked sessions, limited to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.used_bytes = limit_bytes, 0
        self._parked: OrderedDict[str, Parked] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parked)

    def put(self, session: str, parked: Parked) -> None:
        """Parks a session; replaces its earlier cache."""
        self.take(session)
        self._parked[session] = parked
        self.used_bytes += parked.memory.nbytes
        while self.used_bytes > self.limit_bytes:
            self.take(next(iter(self._parked)))

    def get(self, session: str) -> Parked | None:
        """The parked cache of a session."""
        return self._parked.get(session)

    def take(self, session: str) -> Parked | None:
        """Removes a session and returns its cache."""
        if (parked := self._parked.pop(session, None)) is not None:
            self.used_bytes -= parked.memory.nbytes
        return parked

    def newest_first(self) -> list[Parked]:
        """All parked caches, the most recently used first."""
        return list(reversed(self._parked.values()))

    def clear(self) -> None:
        """Drops all sessions."""
        self._parked.clear()
        self.used_bytes = 0


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix. Compares slices (in C), and bisects to the first difference."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
