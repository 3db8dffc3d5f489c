"""A causal language model with a KV cache (arena), which its forward passes read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engines.embedded.forward.attention import fold, grouped_attention, use_grouped_attention
from agentrl.engines.embedded.forward.plain_pass import PlainPass
from agentrl.engines.embedded.forward.prefill import FORWARD_TOKENS, Fill, Side, passes, sides
from agentrl.engines.embedded.forward.product import Product
from agentrl.engines.embedded.kv_cache import KVArena, RowArena
from agentrl.models.vision.encoder import KeptSight, sample_image
from agentrl.models.vision.image_registry import Places
from agentrl.types.errors import EngineError

Predict = Callable[[Sequence[Fill]], Tensor]

MASK_ALIGNMENT = 8
"""Elements: rows of masks start at multiples of it. Else attention on a GPU copies the mask in every layer."""


class RowModel(Protocol):
    """A causal language model that keeps the caches of its rows in an arena.

    Attributes:
        tile: maximum number of rows of a decode step; None: no maximum.
    """

    tile: int | None
    device: torch.device
    dtype: torch.dtype

    @property
    def products(self) -> Sequence[Product]:
        """Joined matrix products of several linear layers each."""
        ...

    @property
    def arena(self) -> RowArena:
        """The caches."""
        ...

    def padded(self, rows: int) -> int:
        """Number of rows, padding included, that a decode step of `rows` rows (at most `tile`) computes."""
        ...

    def fill(self, fills: Sequence[Fill]) -> None:
        """Prefills the missing tokens of rows.

        Args:
            fills: missing tokens of consecutive rows, the shortest first.
        """
        ...

    @property
    def predict(self) -> Predict | None:
        """Prefills like `fill`, with at least one token per row, and returns the logits [rows, vocab] after the last
        token of each row. None for a model that computes row by row."""
        ...

    def decode(self, ids: Tensor, slots: Tensor, length: int, first: int) -> Tensor:
        """Forwards one token per row and stores it in the cache. Returns logits [padded rows, vocab].

        Args:
            ids: int64 [rows, 1], token of each row.
            slots: int64 [rows, 1], slot of each token.
            length: at least the largest slot + 1.
            first: first row of the arena; the others follow it.
        """
        ...

    def score(self, row: int, prefix: list[int], branches: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation after the first `start` tokens of a prefix.

        Args:
            row: row with the prefix except its last token; later rows may be overwritten.
            branches: pairs (continuation, start).
        """
        ...

    def prove(self) -> None:
        """Compares the computed logits with the model's own. Clears the caches.

        Raises:
            EngineError: the logits differ.
        """
        ...


@dataclass(frozen=True)
class Attending:
    """Rows that attend together in a pass, padded to the same number of tokens.

    Attributes:
        rows: their rows of the arena.
        count: number of rows.
        new: tokens of each row, padding included.
        length: attention reads the slots below this one.
        masks: additive attention mask by kind of layer.
        places: int64 [tokens], indices of real tokens among [count * new]; the others are padding. None: no padding.
    """

    rows: slice | Tensor
    count: int
    new: int
    length: int | None
    masks: dict[str, Tensor]
    places: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens without padding."""
        return self.count * self.new if self.places is None else len(self.places)

    def spread(self, states: Tensor) -> Tensor:
        """Pads [tokens, H, D] to [rows, new, H, D]."""
        if self.places is not None:
            padded = states.new_zeros((self.count * self.new, *states.shape[1:]))
            states = padded.index_copy_(0, self.places, states)
        return states.view(self.count, self.new, *states.shape[1:])

    def joined(self, states: Tensor) -> Tensor:
        """Removes the padding of [rows, new, H, D]. Returns [tokens, H * D]."""
        states = states.flatten(0, 1).flatten(1)
        return states if self.places is None else states[self.places]


class CachedModel:
    """Causal language model with keys and values in the rows of an arena.

    Args:
        own: use transformers' forward pass for every family.
        sight: the vision encoder, if the model takes images.

    Attributes:
        tile: maximum number of rows of a decode step; None: no maximum.
    """

    tile: int | None = None

    def __init__(self, model: PreTrainedModel, *, own: bool = False, sight: KeptSight | None = None) -> None:
        self.model, self.sight = model, sight
        self._in_grid = sight is not None and sight.in_grid
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        if self.device.type == "cuda":
            # cuDNN's attention makes a plan for each new length, in 2 ms a layer. Each decode step is a new length.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.arena = KVArena(model, positions=self._in_grid)
        self._plain = None if own else PlainPass.of(model)
        self._groups = self._attend()
        config: Any = model.config.get_text_config()
        self._windows = _windows(config)
        self._kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers

    def _attend(self) -> int:
        return use_grouped_attention(self.model)

    @property
    def products(self) -> Sequence[Product]:
        """The products of the plain pass."""
        return () if self._plain is None else self._plain.products

    @property
    def predict(self) -> Predict | None:
        """Prefills rows and returns the logits [rows, vocab] after their last tokens. None if transformers computes the
        layers: it returns the logits of the same column for all rows."""
        return None if self._plain is None else self._predict

    def padded(self, rows: int) -> int:
        """No padding."""
        return rows

    def fill(self, fills: Sequence[Fill]) -> None:
        """Prefills the missing tokens of rows.

        Args:
            fills: missing tokens of consecutive rows, the shortest first.
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
        """Forwards padded rows in one pass of transformers."""
        width = len(side[-1].token_ids)
        ids = [piece.token_ids + [0] * (width - len(piece.token_ids)) for piece in side]
        slots, real, length = self._laid_out(side)
        self.arena.aim(side[0].row, slots, length, real)
        positions = slots.clamp(max=length - 1)
        tokens, mask = torch.tensor(ids, device=self.device), causal(slots, length)
        if self.sight is None:
            self.forward(tokens, positions, mask, keep=slots.new_empty(0))
        else:
            rotary, places = self._seen(self.sight, side)
            self.forward(tokens, positions, mask, keep=slots.new_empty(0), rotary=rotary, places=places)

    def _seen(self, sight: KeptSight, side: Side) -> tuple[Tensor | None, Places]:
        """Looks at the images of padded rows. Returns the tokens' positions [3, rows, new], if they follow the rows and
        columns of images, and the placeholders among the padded tokens."""
        width = len(side[-1].token_ids)
        padded = np.zeros((len(side), width), np.int64)
        for row, piece in enumerate(side):
            padded[row, : len(piece.token_ids)] = piece.token_ids
        places = sight.places(padded.reshape(-1))
        sight.look(places.number.tolist())
        if not self._in_grid:
            return None, places
        rotary = np.zeros((3, *padded.shape), np.int64)
        for row, piece in enumerate(side):
            count = len(piece.token_ids)
            own = sight.places(padded[row, :count])
            # A piece that begins in the middle of an image continues the positions of the image.
            inside = int(own.place[0]) if len(own.at) and own.at[0] == 0 else 0
            before = piece.start - inside
            base = int(self.arena.following[piece.row, before - 1]) if before else 0
            rotary[:, row, :count], following = sight.positions(padded[row, :count], own, base)
            self.arena.following[piece.row, piece.start : piece.start + count] = torch.from_numpy(following)
        return torch.from_numpy(rotary).to(self.device), places

    def _laid_out(self, side: Side) -> tuple[Tensor, Tensor, int]:
        """Slots [rows, new] of padded rows, a bool mask of the real ones, and the end of the longest row."""
        columns = torch.arange(len(side[-1].token_ids), device=self.device)
        starts = torch.tensor([[piece.start] for piece in side], device=self.device)
        lengths = torch.tensor([[len(piece.token_ids)] for piece in side], device=self.device)
        # Computed from the lists: reading a tensor would synchronize with the device.
        end = max(piece.start + len(piece.token_ids) for piece in side)
        return starts + columns, columns < lengths, end

    def _pass(self, plain: PlainPass, together: Sequence[Side], *, predict: bool) -> Tensor:
        """Forwards rows of different lengths. Only attention pads them.

        Returns:
            Logits [n, vocab] after the last tokens of the n rows that this pass completes; n is 0 without `predict`.
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
        """Forwards one token per row and stores it in the cache. Returns logits [rows, vocab].

        Args:
            ids: int64 [rows, 1], token of each row.
            slots: int64 [rows, 1], slot of each token.
            length: at least the largest slot + 1.
            first: first row of the arena; the others follow it.
        """
        self.arena.aim(first, slots, length)
        rotary = self._next(first, slots) if self._in_grid else None
        return self.forward(ids, slots, causal(slots, length), rotary=rotary)

    def _next(self, first: int, slots: Tensor) -> Tensor:
        """Positions [3, rows, 1] of one more text token in each row."""
        rows = torch.arange(first, first + len(slots), device=self.device)[:, None]
        here = torch.where(slots > 0, self.arena.following[rows, slots - 1], 0)
        self.arena.following[rows, slots] = here + 1
        return here.expand(3, *here.shape)

    def score(self, row: int, prefix: list[int], branches: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation after the first `start` tokens of a prefix.

        The continuations are branches of a tree. They are forwarded together in one row, under a mask with which each
        sees its part of the prefix and itself.

        Args:
            row: row with the prefix except its last token; later rows may be overwritten.
            branches: pairs (continuation, start).
        """
        return [scores for chunk in _chunks(branches, FORWARD_TOKENS) for scores in self._score(row, prefix, chunk)]

    def _score(self, row: int, prefix: list[int], branches: list[tuple[Sequence[int], int]]) -> list[list[float]]:
        # A branch begins with the last token of its part of the prefix, which predicts the branch's first token. The
        # branch's last token is not forwarded: nothing after it is scored.
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
        rotary = None
        if self._in_grid:
            # The first token of a branch is one of the prefix, which may not be in the cache.
            follow = self.arena.following[row]
            base = torch.where(before > 0, follow[(before - 1).clamp(min=0)], 0)
            rotary = (base + deep)[None, None].expand(3, 1, count)
        logprobs = self.forward(ids, at[None, held:], mask, at=at, rotary=rotary).float().log_softmax(-1)
        wanted = torch.tensor([token for branch, _ in branches for token in branch], device=self.device)
        found = iter(logprobs.gather(1, wanted[:, None])[:, 0].tolist())
        return [[next(found) for _ in branch] for branch, _ in branches]

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        *,
        keep: Tensor | None = None,
        at: Tensor | None = None,
        rotary: Tensor | None = None,
        places: Places | None = None,
    ) -> Tensor:
        """Forwards tokens to the slots that `arena.aim` selected. Returns logits [kept, vocab].

        Args:
            ids, positions: int64 [rows, new].
            mask: bool [rows, 1, new, length], True where a token attends.
            keep: int64 [kept], indices of the tokens whose logits are returned, counted row by row; must be empty for
                models without `predict`. None: all tokens.
            at: int64 [length], positions of the slots. None: their indices.
            rotary: int64 [3, rows, new], positions that follow the rows and columns of images. None: `positions`.
            places: the placeholders of images among the tokens. None: no placeholders.
        """
        additive = self._additive(mask, positions, at)
        if self._plain is not None:
            rows, new = ids.shape
            side = Attending(self.arena.aimed_rows, rows, new, self.arena.aimed_length, additive)
            return self._plain(ids.flatten(), positions.flatten(), partial(self._attended, [side]), keep=keep)
        shared = {
            "attention_mask": additive if len(additive) > 1 else next(iter(additive.values())),
            "position_ids": positions if rotary is None else rotary,
            "past_key_values": self.arena,
            "use_cache": True,
        }
        if self.sight is None:
            output = self.model(input_ids=ids, **shared, logits_to_keep=0 if keep is None else 1).logits
        else:
            states = self.sight.decoder(**self.sight.inputs(ids, places), **shared).last_hidden_state
            output = self.model.get_output_embeddings()(states if keep is None else states[:, -1:])
        logits: Tensor = output.flatten(0, 1)
        return logits if keep is None else logits[:0]

    def _attended(
        self, sides: Sequence[Attending], layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Attention of the plain pass. Stores the new keys and values."""
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
        """Additive attention masks by kind of layer. Built once per pass: every layer would convert a bool mask."""
        found: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            seen = mask
            if window is not None and window < mask.shape[-1]:
                at = torch.arange(mask.shape[-1], device=self.device) if at is None else at
                seen = mask & (positions[:, None, :, None] - at < window)
            aligned = (*seen.shape[:-1], -(-seen.shape[-1] // MASK_ALIGNMENT) * MASK_ALIGNMENT)
            additive = torch.zeros(aligned, dtype=self.dtype, device=self.device)[..., : seen.shape[-1]]
            found[kind] = fold(additive.masked_fill_(~seen, -torch.inf), self._groups)
        return found

    @property
    def allowed(self) -> float:
        """Allowed difference of logits from the model's own, relative to the largest logit."""
        return 1e-3 if self.dtype == torch.float32 else 0.1

    def prove(self) -> None:
        """Compares prefill and decode of ragged rows, one of them prefilled in two parts, with the model's own pass.

        Raises:
            EngineError: the logits differ.
        """
        config: Any = self.model.config.get_text_config()
        longest = min(44, getattr(config, "max_position_embeddings", None) or 44)
        # The first two lack different numbers of tokens, and attend side by side; the third by itself.
        rows = [[5, 12, 13], [5, 6, 7, 8, 9, 10, 11], [*range(5, 5 + longest)]]
        rows = [[token % config.vocab_size for token in row] for row in rows]
        if self.sight is not None:
            rows, image = [self.sight.plain_text(row) for row in rows], sample_image(self.sight.album)
            rows[1][1:1], rows[2][5:5] = image, image
        longest = max(map(len, rows))
        with torch.no_grad():
            self.arena.reserve(3, longest)
            self.fill([Fill(1, 0, rows[1][:3])])
            self.fill([Fill(0, 0, rows[0][:-1]), Fill(1, 3, rows[1][3:-1]), Fill(2, 0, rows[2][:-1])])
            ids = torch.tensor([row[-1:] for row in rows], device=self.device)
            slots = torch.tensor([[len(row) - 1] for row in rows], device=self.device)
            ours = self.decode(ids, slots, longest, 0).float()
            own = [self._own_logits(row) for row in rows]
        self.arena.clear()
        theirs = torch.stack([logits[-1] for logits in own]).float()
        difference = (ours - theirs).abs().max().item()
        # Logits that are not finite pass: a dead policy is reported when it samples.
        if difference > self.allowed * max(1.0, theirs.abs().max().item()):
            raise EngineError(f"its cached logits would differ by {difference:.3g} from the model's own")

    def _own_logits(self, row: list[int]) -> Tensor:
        if self.sight is not None:
            return self.sight.own_logits(row)
        logits: Tensor = self.model(input_ids=torch.tensor([row], device=self.device), use_cache=False).logits[0]
        return logits


def _windows(config: Any) -> dict[str, int | None]:
    """The attention window in tokens by kind of layer (transformers' name); None: unlimited.

    Raises:
        EngineError: the arena does not support a kind of layer.
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
    """Causal mask, bool [rows, 1, new, length]: a token in slot s attends to slots up to s. `slots`: [rows, new]."""
    return (torch.arange(length, device=slots.device) <= slots[:, :, None])[:, None]


def _chunks(branches: Sequence[tuple[Sequence[int], int]], budget: int) -> Iterator[list[tuple[Sequence[int], int]]]:
    """Splits pairs (continuation, start) into chunks of at most `budget` tokens; a longer one is a chunk by itself."""
    chunk: list[tuple[Sequence[int], int]] = []
    for branch in branches:
        if chunk and sum(len(continuation) for continuation, _ in chunk) + len(branch[0]) > budget:
            yield chunk
            chunk = []
        chunk.append(branch)
    if chunk:
        yield chunk
