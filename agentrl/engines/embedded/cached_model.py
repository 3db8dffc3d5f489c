"""A model with the arena that its forward passes read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engines.embedded.forward.attention import fold, grouped_attention, use_grouped_attention
from agentrl.engines.embedded.forward.plain_pass import PlainPass
from agentrl.engines.embedded.forward.prefill import FORWARD_TOKENS, Fill, Side, passes, sides
from agentrl.engines.embedded.forward.product import Product
from agentrl.engines.embedded.kv_cache import Arena, KVArena
from agentrl.types.errors import EngineError

Predict = Callable[[Sequence[Fill]], Tensor]


class RowModel(Protocol):
    """A causal language model that keeps the caches of its rows in an arena.

    Attributes:
        tile: most rows of a decode step; None: as many as there are.
    """

    tile: int | None
    device: torch.device
    dtype: torch.dtype

    @property
    def products(self) -> Sequence[Product]:
        """The products of several linear layers that it computes by."""
        ...

    @property
    def arena(self) -> Arena:
        """Where the caches are."""
        ...

    def padded(self, rows: int) -> int:
        """So many rows are computed for so many, at most `tile`, that decode."""
        ...

    def fill(self, fills: Sequence[Fill]) -> None:
        """Forwards what rows lack.

        Args:
            fills: of consecutive rows, the shortest first.
        """
        ...

    @property
    def predict(self) -> Predict | None:
        """As `fill`, where every row lacks something. Gives the logits [rows, vocab] behind the last token of each.
        None for a model that has them for a row at a time only."""
        ...

    def decode(self, ids: Tensor, slots: Tensor, length: int, first: int) -> Tensor:
        """Logits [padded rows, vocab] of one more token for each of some rows, stored where they are filled to.

        Args:
            ids: int64 [rows, 1], as `slots`.
            length: at least the largest slot + 1.
            first: the rows of the arena from this one on.
        """
        ...

    def score(self, row: int, prefix: list[int], branches: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation after the first `start` tokens of a prefix.

        Args:
            row: holds the prefix but for its last token; the rows from there on may be overwritten.
            branches: (continuation, start) each.
        """
        ...

    def prove(self) -> None:
        """Compares what it computes with what it should; drops what is stored.

        Raises:
            EngineError: it computes something else.
        """
        ...


@dataclass(frozen=True)
class Attending:
    """Rows side by side in a pass, as their attention sees them.

    Attributes:
        rows: where they are in the arena.
        count: their number.
        new: the tokens of each, padding counted.
        length: attention sees the slots below it.
        masks: what is added to the scores, by kind of layer.
        places: int64 [tokens], where their tokens are among [count * new]; the others pad. None: none pads.
    """

    rows: slice | Tensor
    count: int
    new: int
    length: int | None
    masks: dict[str, Tensor]
    places: Tensor | None = None

    @property
    def tokens(self) -> int:
        """How many, padding not counted."""
        return self.count * self.new if self.places is None else len(self.places)

    def spread(self, states: Tensor) -> Tensor:
        """[tokens, H, D] as [rows, new, H, D]."""
        if self.places is not None:
            padded = states.new_zeros((self.count * self.new, *states.shape[1:]))
            states = padded.index_copy_(0, self.places, states)
        return states.view(self.count, self.new, *states.shape[1:])

    def joined(self, states: Tensor) -> Tensor:
        """[rows, new, H, D] as [tokens, H * D]."""
        states = states.flatten(0, 1).flatten(1)
        return states if self.places is None else states[self.places]


class CachedModel:
    """A causal language model whose keys and values lie in the rows of an arena.

    Args:
        own: its passes are those of transformers, of whatever family it is.

    Attributes:
        tile: most rows of a decode step; None: as many as there are.
    """

    tile: int | None = None

    def __init__(self, model: PreTrainedModel, *, own: bool = False) -> None:
        self.model = model
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.arena = KVArena(model)
        self._plain = None if own else PlainPass.of(model)
        self._groups = self._attend()
        config: Any = model.config.get_text_config()
        self._windows = _windows(config)
        self._kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers

    def _attend(self) -> int:
        return use_grouped_attention(self.model)

    @property
    def products(self) -> Sequence[Product]:
        """Those of a plain pass."""
        return () if self._plain is None else self._plain.products

    @property
    def predict(self) -> Predict | None:
        """Fills rows, each of which lacks something, and gives the logits [rows, vocab] behind their last tokens. None
        where transformers computes the layers: it keeps the logits of one column for all rows."""
        return None if self._plain is None else self._predict

    def padded(self, rows: int) -> int:
        """As many as run."""
        return rows

    def fill(self, fills: Sequence[Fill]) -> None:
        """Forwards what rows lack.

        Args:
            fills: of consecutive rows, the shortest first.
        """
        if self._plain is None:
            for side in sides(fills):
                self._fill_side(side)
        else:
            for some in passes(fills):
                self._pass(self._plain, some, predict=False)

    def _predict(self, fills: Sequence[Fill]) -> Tensor:
        assert self._plain is not None
        return torch.cat([self._pass(self._plain, some, predict=True) for some in passes(fills)])

    def _fill_side(self, side: Side) -> None:
        """Forwards rows side by side."""
        width = len(side[-1].token_ids)
        ids = [piece.token_ids + [0] * (width - len(piece.token_ids)) for piece in side]
        slots, real, length = self._laid_out(side)
        self.arena.aim(side[0].row, slots, length, real)
        positions = slots.clamp(max=length - 1)
        self.forward(torch.tensor(ids, device=self.device), positions, causal(slots, length), keep=slots.new_empty(0))

    def _laid_out(self, side: Side) -> tuple[Tensor, Tensor, int]:
        """Slots [rows, new] of rows side by side, which of them are real (the others pad), and the end of the last."""
        columns = torch.arange(len(side[-1].token_ids), device=self.device)
        starts = torch.tensor([[piece.start] for piece in side], device=self.device)
        lengths = torch.tensor([[len(piece.token_ids)] for piece in side], device=self.device)
        # From the lists: reading a tensor would wait for the device.
        end = max(piece.start + len(piece.token_ids) for piece in side)
        return starts + columns, columns < lengths, end

    def _pass(self, plain: PlainPass, together: Sequence[Side], *, predict: bool) -> Tensor:
        """Forwards rows, each with its own number of tokens. Only attention pads them.

        Returns:
            Logits [n, vocab] behind the last tokens of the rows that lack no more; of none unless `predict`.
        """
        pieces = [piece for side in together for piece in side]
        rows = [piece.row for piece in pieces for _ in piece.token_ids]
        at = [piece.start + number for piece in pieces for number in range(len(piece.token_ids))]
        ids = [token for piece in pieces for token in piece.token_ids]
        slots = torch.tensor(at, device=self.device)
        self.arena.aim_tokens(torch.tensor(rows, device=self.device), slots)
        ends = accumulate(len(piece.token_ids) for piece in pieces)
        keep = [end - 1 for piece, end in zip(pieces, ends, strict=True) if predict and piece.ends]
        attend = partial(self._attended, [self._attending(side) for side in together])
        index = torch.tensor(keep, dtype=torch.int64, device=self.device)
        return plain(torch.tensor(ids, device=self.device), slots, attend, keep=index)

    def _attending(self, side: Side) -> Attending:
        slots, _, length = self._laid_out(side)
        masks = self._additive(causal(slots, length), slots)
        rows, (count, new) = slice(side[0].row, side[0].row + len(side)), slots.shape
        places = [row * new + column for row, piece in enumerate(side) for column in range(len(piece.token_ids))]
        index = None if len(places) == count * new else torch.tensor(places, device=self.device)
        return Attending(rows, count, new, length, masks, index)

    def decode(self, ids: Tensor, slots: Tensor, length: int, first: int) -> Tensor:
        """Logits [rows, vocab] of one more token for each of some rows, stored where they are filled to.

        Args:
            ids: int64 [rows, 1], as `slots`.
            length: at least the largest slot + 1.
            first: the rows of the arena from this one on.
        """
        self.arena.aim(first, slots, length)
        return self.forward(ids, slots, causal(slots, length))

    def score(self, row: int, prefix: list[int], branches: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation after the first `start` tokens of a prefix.

        The continuations are branches of a tree: they go through the model side by side in one row, each under a
        mask that shows it its part of the prefix and itself.

        Args:
            row: holds the prefix but for its last token; the rows from there on may be overwritten.
            branches: (continuation, start) each.
        """
        return [scores for chunk in _chunks(branches, FORWARD_TOKENS) for scores in self._score(row, prefix, chunk)]

    def _score(self, row: int, prefix: list[int], branches: list[tuple[Sequence[int], int]]) -> list[list[float]]:
        # A branch begins with the last token of its part of the prefix, once more: that predicts its first. Its own
        # last token predicts nothing that is asked for.
        fed = [[prefix[start - 1], *branch[:-1]] if branch else [] for branch, start in branches]
        if not (count := sum(map(len, fed))):
            return [[] for _ in branches]
        lengths = torch.tensor([len(tokens) for tokens in fed], device=self.device)
        before = torch.tensor([start - 1 for _, start in branches], device=self.device).repeat_interleave(lengths)
        who = torch.arange(len(fed), device=self.device).repeat_interleave(lengths)
        deep = torch.tensor([at for tokens in fed for at in range(len(tokens))], device=self.device)
        held = len(prefix) - 1
        own = (who[:, None] == who) & (deep[:, None] >= deep)
        shared = torch.arange(held, device=self.device) < before[:, None]
        mask = torch.cat([shared, own], 1)[None, None]
        slots = torch.arange(held, held + count, device=self.device)[None]
        self.arena.reserve(row + 1, held + count)
        self.arena.aim(row, slots, held + count)
        ids = torch.tensor([[token for tokens in fed for token in tokens]], device=self.device)
        at = torch.cat([torch.arange(held, device=self.device), before + deep])
        logprobs = self.forward(ids, at[None, held:], mask, at=at).float().log_softmax(-1)
        wanted = torch.tensor([token for branch, _ in branches for token in branch], device=self.device)
        found = iter(logprobs.gather(1, wanted[:, None])[:, 0].tolist())
        return [[next(found) for _ in branch] for branch, _ in branches]

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, *, keep: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Logits [kept, vocab] of tokens that are stored where the arena was aimed at.

        Args:
            ids: int64 [rows, new], as `positions`.
            mask: bool [rows, 1, new, length], true where seen.
            keep: int64 [kept], of which tokens, numbered row by row; only for models that predict, else empty. None:
                of all.
            at: int64 [length], the positions of the slots. None: their numbers.
        """
        additive = self._additive(mask, positions, at)
        if self._plain is not None:
            rows, new = ids.shape
            side = Attending(self.arena.aimed_rows, rows, new, self.arena.aimed_length, additive)
            return self._plain(ids.flatten(), positions.flatten(), partial(self._attended, [side]), keep=keep)
        output = self.model(
            input_ids=ids,
            attention_mask=additive if len(additive) > 1 else next(iter(additive.values())),
            position_ids=positions,
            past_key_values=self.arena,
            use_cache=True,
            logits_to_keep=0 if keep is None else 1,
        )
        logits: Tensor = output.logits.flatten(0, 1)
        return logits if keep is None else logits[:0]

    def _attended(
        self, sides: Sequence[Attending], layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Attention of a plain pass, which stores its keys and values."""
        self.arena.store(key, value, layer)
        found = []
        for side, own in zip(sides, torch.split(query, [side.tokens for side in sides]), strict=True):
            keys, values = self.arena.seen(side.rows, side.length, layer)
            mask = side.masks[self._kinds[layer]]
            found.append(side.joined(self._attention(side.spread(own).transpose(1, 2), keys, values, mask, scaling)))
        return torch.cat(found) if len(found) > 1 else found[0]

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
        return grouped_attention(query, key, value, mask, scaling)

    def _additive(self, mask: Tensor, positions: Tensor, at: Tensor | None = None) -> dict[str, Tensor]:
        """What is added to the scores, by kind of layer. Made once for all layers: given a bool mask, every layer would
        convert it again."""
        found: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            seen = mask
            if window is not None and window < mask.shape[-1]:
                at = torch.arange(mask.shape[-1], device=self.device) if at is None else at
                seen = mask & (positions[:, None, :, None] - at < window)
            additive = torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(~seen, -torch.inf)
            found[kind] = fold(additive, self._groups)
        return found

    @property
    def allowed(self) -> float:
        """By how much logits may differ from the model's own, as a share of the largest."""
        return 1e-3 if self.dtype == torch.float32 else 0.1

    def prove(self) -> None:
        """Compares ragged rows, one of them prefilled in two parts, and decoded, with the model's own passes.

        Raises:
            EngineError: the logits differ.
        """
        config: Any = self.model.config.get_text_config()
        longest = min(44, getattr(config, "max_position_embeddings", None) or 44)
        # The first two lack different numbers of tokens, and attend side by side; the third by itself.
        rows = [[5, 12, 13], [5, 6, 7, 8, 9, 10, 11], [*range(5, 5 + longest)]]
        rows = [[token % config.vocab_size for token in row] for row in rows]
        with torch.no_grad():
            self.arena.reserve(3, longest)
            self.fill([Fill(1, 0, rows[1][:3])])
            self.fill([Fill(0, 0, rows[0][:-1]), Fill(1, 3, rows[1][3:-1]), Fill(2, 0, rows[2][:-1])])
            ids = torch.tensor([row[-1:] for row in rows], device=self.device)
            slots = torch.tensor([[len(row) - 1] for row in rows], device=self.device)
            ours = self.decode(ids, slots, longest, 0).float()
            own = [self.model(input_ids=torch.tensor([row], device=self.device), use_cache=False) for row in rows]
        self.arena.clear()
        theirs = torch.stack([output.logits[0, -1] for output in own]).float()
        difference = (ours - theirs).abs().max().item()
        # Those of a dead policy are not finite, which is an error later.
        if difference > self.allowed * max(1.0, theirs.abs().max().item()):
            raise EngineError(f"its cached logits would differ by {difference:.3g} from the model's own")


def _windows(config: Any) -> dict[str, int | None]:
    """By kind of layer, as transformers names it, how many tokens its attention looks back on; None: all.

    Raises:
        EngineError: a kind of layer that the arena does not know.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        used = getattr(config, "use_sliding_window", True)
        return {"full_attention": window if used else None}
    known = {"full_attention": None, "sliding_attention": window}
    if unknown := sorted(kinds - known.keys()):
        raise EngineError(f"{config.model_type} has layers of the kind {unknown[0]}")
    return {kind: known[kind] for kind in sorted(kinds)}


def causal(slots: Tensor, length: int) -> Tensor:
    """The mask [rows, 1, new, length] under which a token in slot s sees the slots up to s. `slots`: [rows, new]."""
    return (torch.arange(length, device=slots.device) <= slots[:, :, None])[:, None]


def _chunks(branches: Sequence[tuple[Sequence[int], int]], budget: int) -> Iterator[list[tuple[Sequence[int], int]]]:
    """Runs of (continuation, start) of at most `budget` tokens together (or of one that is longer)."""
    chunk: list[tuple[Sequence[int], int]] = []
    for branch in branches:
        if chunk and sum(len(continuation) for continuation, _ in chunk) + len(branch[0]) > budget:
            yield chunk
            chunk = []
        chunk.append(branch)
    if chunk:
        yield chunk
