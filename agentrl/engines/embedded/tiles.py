"""Batch-invariant computation: a token's logits are the same bits whoever shares the batch.

Which kernel a matrix product takes, and in what order it sums, depends on the shapes of its operands; so does where a
vectorised loop ends. Hence every operation here has one shape only. The model forwards tiles of `TILE` tokens, each as
a row of its own, whether they are prefilled or decoded; attention reads keys and values in blocks of `BLOCK` slots,
one after the other. What pads a tile belongs to a row of its own; a block that a mask hides whole changes no bit. What
is left to depend on is a token's place within its tile: that it makes no difference is tried at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentrl.engines.embedded.cached_model import CachedModel, Fill
from agentrl.types.errors import EngineError

TILE = 32
"""Tokens of a forward pass: a multiple of what vectorised loops take at once, so that none ends within a row."""

BLOCK = 128
"""Slots that attention reads at once."""

NAME = "agentrl_tiled"


class TiledModel(CachedModel):
    """A model that computes in tiles.

    Raises:
        EngineError: it is on a GPU, or its attention is more than scaled dot products; or the machine's kernels do not
            treat the rows of a tile alike.
    """

    tile: int | None = TILE

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        if self.device.type != "cpu":
            raise _refused(f"in the embedded engine it is proven on CPUs only, and the model is on {self.device}")
        self.prove()

    def _attend(self) -> int:
        config: Any = self.model.config.get_text_config()
        known = config._attn_implementation in ("sdpa", "agentrl_grouped", NAME)
        if not known or not getattr(self.model, "_supports_attention_backend", False):
            raise _refused(f"the attention of {config.model_type} cannot be replaced")
        config._attn_implementation = NAME
        return 1

    def fill(self, fills: Sequence[Fill]) -> None:
        places = [
            (fill.row, slot, token) for fill in fills for slot, token in enumerate(fill.token_ids, start=fill.start)
        ]
        spare = max((fill.row for fill in fills), default=0) + 1
        for tile in _tiles(places):
            self._forward(*self._places(tile, spare), keep=False)

    def decode(self, ids: Tensor, slots: Tensor, length: int, first: int, count: int) -> Tensor:
        rows = torch.arange(first, first + TILE).clamp_(max=first + count)
        return self._forward(rows, slots[:, 0], ids[:, 0], length, keep=True)

    def score(self, row: int, prefix: list[int], branches: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        return [self._score_one(row, prefix, list(branch), start) for branch, start in branches]

    def _score_one(self, row: int, prefix: list[int], branch: list[int], start: int) -> list[float]:
        """In a row of its own, where its tokens lie in the slots that any sampler gives them."""
        self.arena.reserve(row + 3, _blocks(start + len(branch)))
        self.arena.copy_row(row, row + 1, start - 1)
        scores: list[float] = []
        fed = [(row + 1, slot, token) for slot, token in enumerate([prefix[start - 1], *branch[:-1]], start=start - 1)]
        for tile in _tiles(fed[: len(branch)]):
            logprobs = self._forward(*self._places(tile, row + 2), keep=True).float().log_softmax(-1)
            wanted = branch[len(scores) : len(scores) + len(tile)]
            scores += logprobs[range(len(tile)), wanted].tolist()
        return scores

    def _places(self, tile: Sequence[tuple[int, int, int]], spare: int) -> tuple[Tensor, Tensor, Tensor, int]:
        """Rows, slots and tokens of a tile, padded by tokens of a spare row; and the length that covers its slots."""
        length = _blocks(1 + max(slot for _, slot, _ in tile))
        self.arena.reserve(spare + 1, length)
        rows, slots, ids = torch.tensor([*tile, *[(spare, 0, 0)] * (TILE - len(tile))]).T
        return rows, slots, ids, length

    def _forward(self, rows: Tensor, slots: Tensor, ids: Tensor, length: int, *, keep: bool) -> Tensor:
        """Logits [TILE, vocab] of tokens at any places of the arena, int64 [TILE] each; not `keep`: [TILE, 0 of them].

        Tokens of one row are in order, and all before them are stored or among them.
        """
        length = _blocks(length)
        hidden = torch.arange(length) > slots[:, None, None, None]
        self.arena.reserve(1, length)
        self.arena.aim_at(rows[:, None], slots[:, None])
        output = self.model(
            input_ids=ids[:, None],
            attention_mask=self._additive(~hidden, slots[:, None]),
            position_ids=slots[:, None],
            past_key_values=self.arena,
            use_cache=True,
            logits_to_keep=1 if keep else torch.zeros(0, dtype=torch.int64),
            arena_rows=rows,
        )
        logits: Tensor = output.logits
        return logits[:, -1] if keep else logits

    def prove(self) -> None:
        """That all places of a tile give a token the same bits, and those the model's own logits but for rounding. A
        sequence of two tokens in every place of a tile.

        Raises:
            EngineError: they do not.
        """
        try:
            with torch.no_grad():
                for slot in range(2):
                    places = [(row, slot, slot + 1) for row in range(TILE)]
                    logits = self._forward(*self._places(places, TILE), keep=True)
                own = self.model(input_ids=torch.tensor([[1, 2]]), use_cache=False).logits[0, -1]
        except (RuntimeError, TypeError) as error:  # a family that does not hand `arena_rows` on, say
            raise _refused(f"{type(self.model).__name__} does not forward a tile: {error}") from error
        self.arena.clear()
        logits = logits.nan_to_num()  # broken weights are told later
        if not torch.equal(logits, logits[:1].expand_as(logits)):
            raise _refused("this machine computes the rows of one matrix product in different ways")
        difference = (logits[0] - own).abs().max().item()
        if difference > self.allowed * max(1.0, own.abs().max().item()):
            raise _refused(f"the logits of {type(self.model).__name__} would differ by {difference:.3g} from its own")


def tiled_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    arena_rows: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention in the form that transformers calls, over keys and values where they lie in the arena. Without
    `arena_rows`, transformers' own.

    In float32, whatever the model's type. The softmax is summed up from block to block (Milakov, Gimelshein, "Online
    normalizer calculation for softmax", 2018): under a hidden block it is multiplied by exactly 1, and 0 is added.

    Args:
        query: [TILE, H, 1, D].
        key: [rows of the arena, H', slots, D], as `value` (whose D may differ); H' divides H.
        attention_mask: additive, [TILE, 1, 1, a multiple of BLOCK].
        arena_rows: int64 [TILE]: whose keys each token sees.

    Returns:
        [TILE, 1, H, D], and None for the weights.
    """
    if arena_rows is None:  # somebody else calls the model
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return output, None
    if attention_mask is None or softcap is not None or s_aux is not None:
        raise _refused(f"{type(module).__name__} asks for more than scaled dot products under a mask")
    tokens, heads, _, width = query.shape
    kv_heads = key.shape[1]
    scale = width**-0.5 if scaling is None else scaling
    queries = query.float().reshape(tokens * kv_heads, heads // kv_heads, width) * scale
    # Not -inf: a window may hide a token's first blocks.
    highest = queries.new_full((*queries.shape[:2], 1), torch.finfo(queries.dtype).min)
    total, attended = torch.zeros_like(highest), queries.new_zeros((*queries.shape[:2], value.shape[-1]))
    mask = attention_mask.expand(-1, kv_heads, 1, -1).reshape(tokens * kv_heads, 1, -1)
    for start in range(0, mask.shape[-1], BLOCK):
        block = slice(start, start + BLOCK)
        keys, values = (x[:, :, block].index_select(0, arena_rows).float().flatten(0, 1) for x in (key, value))
        scores = torch.bmm(queries, keys.transpose(1, 2)).add_(mask[:, :, block])
        higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights, kept = scores.sub_(higher).exp_(), (highest - higher).exp_()
        total = total * kept + weights.sum(-1, keepdim=True)
        attended = attended * kept + torch.bmm(weights, values)
        highest = higher
    attended = (attended / total).to(query.dtype)
    return attended.view(tokens, 1, heads, -1), None


def _refused(why: str) -> EngineError:
    what = f"no batch-invariant computation: {why}"
    return EngineError(what, place="engine.batch_invariant", remedy="set it to false")


def _blocks(length: int) -> int:
    """`length` rounded up to whole blocks."""
    return -(-length // BLOCK) * BLOCK


def _tiles(places: Sequence[tuple[int, int, int]]) -> Iterator[Sequence[tuple[int, int, int]]]:
    for at in range(0, len(places), TILE):
        yield places[at : at + TILE]


AttentionInterface.register(NAME, tiled_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
