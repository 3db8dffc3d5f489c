"""Batch-invariant computation: a token's logits are bit-identical for every batch composition.

The shapes of its operands decide which kernel a matrix product uses, in which order it sums, and where its vectorised
loops end. The model therefore forwards tokens only in a few shapes (tiles). At the start it checks that they give a
token the same bits at every place. Attention reads keys and values in blocks of `BLOCK` slots, one after the other, for
at least `LEAST` queries of a row. Padding of a tile is never read, and a block that the mask hides changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentrl.engines.embedded.cached_model import CachedModel
from agentrl.engines.embedded.draw import draw
from agentrl.engines.embedded.forward.attention import own_attention
from agentrl.engines.embedded.forward.prefill import Fill, Piece
from agentrl.types.errors import EngineError


class Tile(NamedTuple):
    """The shape of a forward pass: rows, and consecutive tokens per row."""

    rows: int
    new: int


STEP = Tile(32, 1)
"""Tile of decode steps, with which the others are compared. Its rows are a multiple of a vectorised loop's width."""

STEPS, PREFILLS = (Tile(8, 1), Tile(16, 1)), (Tile(2, 16), Tile(8, 16), Tile(32, 16))
"""Further tiles by size: for decode steps of fewer rows, and for prefills."""

TRIED = 2e10
"""Maximum of parameters * tokens for which a tile is tried (about a second). Large models gain nothing from tiles
beyond it."""

LANES = 32
"""Maximum width of vectorised loops: two of the longest registers of float32. The remainder of a loop runs other code,
with exponentials that differ in the last bit, too rarely for a trial to detect."""

BLOCK = 128
"""Slots per block of attention."""

LEAST = 8
"""Minimum number of queries per attention. Kernels for fewer sum in an order that depends on memory alignment."""

NAME = "agentrl_tiled"

Keep = Literal["none", "last", "all"]
"""Tokens of a row for which logits are returned."""


class TiledModel(CachedModel):
    """A model that computes in tiles.

    Raises:
        EngineError: the model is on a GPU, its attention is not plain scaled dot products, or this machine's kernels
            compute the rows of a tile differently.
    """

    tile: int | None = STEP.rows

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._common = math.gcd(*(size for parameter in model.parameters() for size in parameter.shape))
        self._steps: tuple[Tile, ...] = (STEP,)
        self._prefills: tuple[Tile, ...] = (STEP,)
        if self.device.type != "cpu":
            raise _refused(f"in the embedded engine it is proven on CPUs only, and the model is on {self.device}")
        self.prove()

    def _attend(self) -> int:
        config: Any = self.model.config.get_text_config()
        known = config._attn_implementation in ("sdpa", "agentrl_grouped", NAME)
        if not known or not getattr(self.model, "_supports_attention_backend", False):
            raise _refused(f"the attention of {config.model_type} cannot be replaced")
        config._attn_implementation = NAME
        heads: int = config.num_attention_heads
        return heads // (getattr(config, "num_key_value_heads", None) or heads)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
        return tiled_attention(query, key, value, mask, scaling)

    def padded(self, rows: int) -> int:
        return next(tile.rows for tile in self._steps if tile.rows >= rows)

    def fill(self, fills: Sequence[Fill]) -> None:
        self._prefill(fills, keep="none")

    def _predict(self, fills: Sequence[Fill]) -> Tensor:
        return self._prefill(fills, keep="last")

    def decode(self, ids: Tensor, slots: Tensor, length: int, first: int) -> Tensor:
        rows = list(range(first, first + len(ids)))
        padding = self.padded(len(rows)) - len(rows)
        ids, slots = (functional.pad(x, (0, 0, 0, padding)) for x in (ids, slots))
        return self._forward(rows, first + len(rows), ids, slots, length)

    def score(self, row: int, prefix: list[int], branches: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        return [self._score_one(row, prefix, list(branch), start) for branch, start in branches]

    def _score_one(self, row: int, prefix: list[int], branch: list[int], start: int) -> list[float]:
        """Scores a branch in its own row, in which its tokens have the same slots as in sampling."""
        if not branch:
            return []
        self.arena.reserve(row + 3, _blocks(start + len(branch)))
        self.arena.copy_row(row, row + 1, start - 1)
        fed = Fill(row + 1, start - 1, [prefix[start - 1], *branch[:-1]])
        logprobs = self._prefill([fed], keep="all").float().log_softmax(-1)
        scores: list[float] = logprobs[range(len(branch)), branch].tolist()
        return scores

    def _prefill(self, fills: Sequence[Fill], *, keep: Keep) -> Tensor:
        """Prefills rows piece by piece, the first pieces of all rows first. Returns logits of `keep` in that order."""
        free = max(fill.row for fill in fills) + 1
        tiles = self._prefills if any(len(fill.token_ids) > 1 for fill in fills) else self._steps
        pieces, kept = list(_pieces(fills, tiles[0].new)), []
        while pieces:
            # The largest tile that is more than half full.
            tile = next((tile for tile in reversed(tiles) if 2 * len(pieces) > tile.rows), tiles[0])
            kept.append(self._forward_pieces(pieces[: tile.rows], tile, free, keep))
            pieces = pieces[tile.rows :]
        return torch.cat(kept) if kept else torch.empty(0)

    def _forward_pieces(self, pieces: Sequence[Piece], tile: Tile, free: int, keep: Keep) -> Tensor:
        ids = [piece.token_ids + [0] * (tile.new - len(piece.token_ids)) for piece in pieces]
        starts = [piece.start for piece in pieces]
        padding = tile.rows - len(pieces)
        slots = torch.tensor(starts + [0] * padding)[:, None] + torch.arange(tile.new)
        tokens = torch.tensor(ids + [[0] * tile.new] * padding)
        index = [number * tile.new + column for number, piece in enumerate(pieces) for column in _kept(piece, keep)]
        rows, length = [piece.row for piece in pieces], max(starts) + tile.new
        if keep == "all":
            return self._forward(rows, free, tokens, slots, length)[index]
        shape = max(LEAST, tile.rows) if index else 0
        padded = torch.tensor(index + [0] * (shape - len(index)), dtype=torch.int64)
        return self._forward(rows, free, tokens, slots, length, padded)[: len(index)]

    def _forward(
        self, rows: list[int], free: int, ids: Tensor, slots: Tensor, length: int, keep: Tensor | None = None
    ) -> Tensor:
        """Logits of a tile of tokens. Earlier tokens of each row must be stored or in the tile.

        Args:
            rows: rows of the arena for the tile's first rows; the tile's other rows are padding.
            free: first free row of the arena.
            ids, slots: int64 [tile.rows, tile.new].
            keep: see `forward`.
        """
        length, count, first = _blocks(length), len(ids), rows[0]
        self.arena.reserve(free + 1, length)
        consecutive = rows == list(range(first, first + len(rows)))
        unread = len(rows) == count or first + len(rows) >= free  # padding would only overwrite free rows
        if consecutive and unread and first + count <= self.arena.rows:
            self.arena.aim(first, slots, length)
        else:
            self.arena.aim_at(torch.tensor(rows + [free] * (count - len(rows))), slots, length)
        seen = torch.arange(length) <= slots[:, None, :, None]
        return self.forward(ids, slots, seen, keep=keep)

    def prove(self) -> None:
        """Checks that all places of a step's tile give a token the same bits, equal to the model's own logits up to
        rounding, with a sequence of two tokens in every place. Also finds the other tiles that give the same bits.

        Raises:
            EngineError: the bits or the logits differ.
        """
        try:
            with torch.no_grad():
                for slot in range(2):
                    twice = [Piece(row, slot, [slot + 1], ends=True) for row in range(STEP.rows)]
                    logits = self._forward_pieces(twice, STEP, STEP.rows, "all")
                with own_attention(self.model):
                    own = self.model(input_ids=torch.tensor([[1, 2]]), use_cache=False).logits[0, -1]
                self._check(logits.nan_to_num(), own)  # weights that are not finite are reported at sampling
                alike = set(self._like_steps())
                self._steps = (*(tile for tile in STEPS if tile in alike), STEP)
                self._prefills = tuple(tile for tile in PREFILLS if tile in alike) or (STEP,)
        except (RuntimeError, TypeError) as error:
            raise _refused(f"{type(self.model).__name__} does not forward a tile: {error}") from error
        finally:
            self.arena.clear()

    def _check(self, logits: Tensor, own: Tensor) -> None:
        if not torch.equal(logits, logits[:1].expand_as(logits)):
            raise _refused("this machine computes the rows of one matrix product in different ways")
        difference = (logits[0] - own).abs().max().item()
        if difference > self.allowed * max(1.0, own.abs().max().item()):
            raise _refused(f"the logits of {type(self.model).__name__} would differ by {difference:.3g} from its own")

    def _like_steps(self) -> Iterator[Tile]:
        """Yields the tiles that give the same bits as `STEP`: logits, keys and values of random tokens around the
        border of two blocks, and draws."""
        tiles = [tile for tile in (*STEPS, *PREFILLS) if self._worth_trying(tile.rows * tile.new)]
        config: Any = self.model.config.get_text_config()
        rows, new = (max((tile[at] for tile in tiles), default=0) for at in (0, 1))
        start = max(0, min(BLOCK - new // 2, config.max_position_embeddings - new))
        ids = torch.randint(config.vocab_size, (rows, new), generator=torch.Generator().manual_seed(0))
        by_steps = self._results(ids, start, STEP) if tiles else []
        for tile in tiles if by_steps else ():
            own = self._results(ids[: tile.rows, : tile.new], start, tile)
            if own and all(map(torch.equal, own, (x[: tile.rows, : tile.new] for x in by_steps))):
                yield tile

    def _worth_trying(self, tokens: int) -> bool:
        """Returns True if a tile is small enough to try, and its layers' outputs fill whole vectorised loops."""
        return tokens * self._parameters <= TRIED and tokens * self._common % LANES == 0

    def _results(self, ids: Tensor, start: int, tile: Tile) -> list[Tensor]:
        """The results of a tile for tokens [rows, new]: logits, keys, values and draws, [rows, new or 1, ...] each.
        Empty if they depend on which logits are returned."""
        rows, new = ids.shape
        self._steps = self._prefills = (tile,)
        self.arena.clear()
        fills = [Fill(row, start, tokens) for row, tokens in enumerate(ids.tolist())]
        logits = self._prefill(fills, keep="all").nan_to_num()
        if tile.new == 1:  # it went column by column
            logits = logits.view(new, rows, -1).transpose(0, 1)
        logits = logits.reshape(rows, new, -1)
        saved = [self.arena.save(row, start + new).each for row in range(rows)]
        cached = [torch.stack(layer)[:, :, start:].transpose(1, 2).nan_to_num() for layer in zip(*saved, strict=True)]
        if self.predict is not None and not torch.equal(self._prefill(fills, keep="last").nan_to_num(), logits[:, -1]):
            return []
        return [logits, *cached, *(_drawn(logits[:, 0], tile.rows) if tile.new == 1 else ())]


def _drawn(logits: Tensor, shape: int) -> list[Tensor]:
    """Draws from logits [rows, vocab], `shape` rows at a time, with default and with all sampling settings.

    Returns:
        Tokens, log-probabilities and margins of both, [rows, 1] each.
    """
    found = []
    for some in torch.split(logits, shape):
        padded = functional.pad(some, (0, 0, 0, shape - len(some)))
        keys, ask = torch.arange(shape), torch.full((shape,), 0.7, dtype=torch.float32)
        draws = (draw(padded, keys), draw(padded, keys, temperature=ask, top_p=ask, greedy=ask > 1))
        found.append([column[: len(some), None] for drawn in draws for column in drawn])
    return [torch.cat(columns) for columns in zip(*found, strict=True)]


def tiled_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Tiled attention with transformers' signature. Calls SDPA attention unless the mask consists of whole blocks.

    Args:
        query: [rows, H, new, D] of a tile; `key` and `value` [rows, H', slots, D or D'], where H' divides H.

    Returns:
        [rows, new, H, D'], and None for the weights.
    """
    if attention_mask is None or attention_mask.shape[-1] % BLOCK:  # called by other code than the engine
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return output, None
    if softcap is not None or s_aux is not None:
        raise _refused(f"{type(module).__name__} asks for more than scaled dot products under a mask")
    return tiled_attention(query, key, value, attention_mask, scaling), None


def tiled_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Attention in blocks, [rows, new, H, D']. Arguments as for `tiled_attention_forward`, with a folded mask.

    Computes in float32 for every dtype. The softmax is accumulated from block to block (Milakov, Gimelshein, "Online
    normalizer calculation for softmax", 2018): a hidden block multiplies it by exactly 1 and adds 0.
    """
    rows, heads, new, width = query.shape
    kv_heads = key.shape[1]
    scale = width**-0.5 if scaling is None else scaling
    queries = query.float().reshape(rows * kv_heads, -1, width) * scale
    folded = queries.shape[1]
    queries = _at_least(queries)
    highest = total = attended = torch.empty(0)
    for start in range(0, mask.shape[-1], BLOCK):
        keys, values = (x[:, :, start : start + BLOCK].float().flatten(0, 1) for x in (key, value))
        scores = torch.bmm(queries, keys.transpose(1, 2)).view(rows, kv_heads, -1, BLOCK)
        scores = (scores[:, :, :folded] + mask[..., start : start + BLOCK]).flatten(0, 1)
        # Finite instead of -inf: a sliding window may hide a token's first blocks.
        higher = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
        if start:
            higher = torch.maximum(highest, higher)
        weights = scores.sub_(higher).exp_()
        added, summed = torch.bmm(_at_least(weights), values)[:, :folded], weights.sum(-1, keepdim=True)
        if start:
            kept = (highest - higher).exp_()
            added, summed = added.add_(attended * kept), summed.add_(total * kept)
        highest, total, attended = higher, summed, added
    return (attended / total).to(query.dtype).view(rows, heads, new, -1).transpose(1, 2)


def _kept(piece: Piece, keep: Keep) -> range:
    """Returns the indices of the tokens of a piece for which logits are returned."""
    count = len(piece.token_ids)
    return {"none": range(0), "last": range(count - 1, count if piece.ends else 0), "all": range(count)}[keep]


def _at_least(queries: Tensor) -> Tensor:
    """Pads queries with zeros to [pairs, >= LEAST, width]."""
    lacking = LEAST - queries.shape[1]
    return functional.pad(queries, (0, 0, 0, lacking)) if lacking > 0 else queries


def _refused(why: str) -> EngineError:
    what = f"no batch-invariant computation: {why}"
    return EngineError(what, place="engine.batch_invariant", remedy="set it to false")


def _blocks(length: int) -> int:
    """Rounds `length` up to whole blocks."""
    return -(-length // BLOCK) * BLOCK


def _pieces(fills: Sequence[Fill], new: int) -> Iterator[Piece]:
    """Pieces of at most `new` tokens: the first piece of every row, then the second pieces, and so on."""
    for at in range(0, max((len(fill.token_ids) for fill in fills), default=0), new):
        for row, start, token_ids in fills:
            if at < len(token_ids):
                yield Piece(row, start + at, token_ids[at : at + new], ends=at + new >= len(token_ids))


AttentionInterface.register(NAME, tiled_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
