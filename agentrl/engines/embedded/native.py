"""Models that cache more than keys and values: linear attention, convolutions, hybrids.

Each row has transformers' cache of the family, and is forwarded alone. The cache cannot be cut to a prefix, so it is
reused whole or not at all. This is slower than the arena, and correct for every causal model.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engines.embedded.cached_model import CachedModel, RowModel
from agentrl.engines.embedded.forward.plain_pass import PlainPass
from agentrl.engines.embedded.forward.prefill import FORWARD_TOKENS, Fill
from agentrl.models.vision.encoder import KeptSight
from agentrl.types.errors import EngineError

_log = logging.getLogger(__name__)


def cached_model(model: PreTrainedModel, sight: KeptSight | None = None) -> tuple[RowModel, str | None]:
    """The model with the fastest cache that reproduces its logits, and, if that is not the arena, the reason.

    Args:
        sight: of a model that sees.

    Raises:
        EngineError: no cache reproduces the model's logits.
    """
    config = model.config.get_text_config()
    before = config._attn_implementation
    refusals: list[str] = []
    for own in (False, True) if PlainPass.of(model) is not None else (True,):
        try:
            arena = CachedModel(model, own=own, sight=sight)
            arena.prove()
            if refusals:
                _log.warning("layers are computed by transformers, which is slower, because %s", refusals[0])
            return arena, None
        except (EngineError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as refusal:
            config._attn_implementation = before
            refusals.append(str(refusal).partition("\n")[0])
    if sight is not None:
        raise EngineError(f"{type(model).__name__} is not computed with images: {refusals[-1]}")
    native = NativeModel(model)
    try:
        native.prove()
    except EngineError as error:
        raise EngineError(
            f"{error.message}; batches failed before, because {refusals[-1]}", remedy=error.remedy
        ) from error
    return native, refusals[-1]


@dataclass
class Kept:
    """A cache of transformers, and its number of tokens."""

    cache: Any = None
    length: int = 0

    @property
    def nbytes(self) -> int:
        """Size of its tensors in bytes."""
        return sum(tensor.nbytes for tensor in _tensors(self.cache))


class Rows:
    """Caches by row: the arena of a `NativeModel`."""

    whole = True

    def __init__(self) -> None:
        self.rows: list[Kept] = []

    def reserve(self, rows: int, slots: int) -> None:
        """Grows to at least `rows` rows, of any length."""
        self.rows += [Kept() for _ in range(rows - len(self.rows))]

    def clear(self) -> None:
        """Drops all caches."""
        self.rows = []

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies a row of exactly `length` tokens."""
        self.rows[target] = self.save(source, length)

    def load(self, row: int, held: Kept, length: int) -> None:
        """Copies a saved cache (see `save`) into a row."""
        self.rows[row] = copy.deepcopy(held) if length else Kept()

    def save(self, row: int, length: int) -> Kept:
        """Returns a copy of a row of exactly `length` tokens."""
        assert self.rows[row].length == length
        return copy.deepcopy(self.rows[row])


class NativeModel:
    """A causal language model that computes row by row."""

    tile: int | None = None
    predict = None  # it would cache the whole prompt, which requests with the same prompt could not reuse
    products = ()

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.arena = Rows()
        mamba = "cache_params" in inspect.signature(model.forward).parameters
        self._argument = "cache_params" if mamba else "past_key_values"

    def padded(self, rows: int) -> int:
        """No padding."""
        return rows

    def fill(self, fills: Sequence[Fill]) -> None:
        """Prefills the missing tokens of rows."""
        for fill in fills:
            if not fill.start:
                self.arena.rows[fill.row] = Kept()
            self._feed(self.arena.rows[fill.row], fill.token_ids)

    def decode(self, ids: Tensor, slots: Tensor, length: int, first: int) -> Tensor:
        """Forwards one token per row, from row `first` on. Returns logits [rows, vocab]. `ids`: int64 [rows, 1]."""
        return torch.cat([self._feed(self.arena.rows[first + row], own.tolist()) for row, own in enumerate(ids)])

    def score(self, row: int, prefix: list[int], branches: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation after the first `start` tokens of a prefix.

        Forwards the prefix again, because the row's cache cannot be cut to its beginnings.
        """
        kept = Kept()
        scores: dict[int, list[float]] = {}
        for number in sorted(range(len(branches)), key=lambda each: branches[each][1]):
            branch, start = branches[number]
            self._feed(kept, prefix[kept.length : start - 1])
            fed = [prefix[start - 1], *branch[:-1]] if branch else []
            logprobs = self._feed(copy.deepcopy(kept), fed, keep=len(fed)).float().log_softmax(-1) if fed else None
            scores[number] = [] if logprobs is None else logprobs[range(len(branch)), list(branch)].tolist()
        return [scores[number] for number in range(len(branches))]

    def prove(self) -> None:
        """Compares a row that was prefilled in two parts and decoded with the model's own pass.

        Raises:
            EngineError: the logits differ.
        """
        ids = [token % self.model.config.get_text_config().vocab_size for token in (5, 6, 7, 8, 9, 10, 11)]
        with torch.no_grad():
            kept = Kept()
            for part in (ids[:3], ids[3:6]):
                self._feed(kept, part)
            ours = self._feed(kept, ids[6:]).float()[0]
            own = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0, -1].float()
        difference = (ours - own).abs().max().item()
        if difference > (1e-3 if self.dtype == torch.float32 else 0.1) * max(1.0, own.abs().max().item()):
            raise EngineError(
                f"{type(self.model).__name__}: logits with a cache differ by {difference:.3g} from those without",
                place="engine.use: torch",
                remedy="engine.use: vllm, if vLLM knows the model",
            )

    def _feed(self, kept: Kept, token_ids: Sequence[int], keep: int = 1) -> Tensor:
        """Forwards further tokens of a sequence. Returns logits [keep, vocab] of the last ones."""
        logits: list[Tensor] = []
        for at in range(0, len(token_ids), FORWARD_TOKENS):
            piece = torch.tensor([token_ids[at : at + FORWARD_TOKENS]], device=self.device)
            own = {} if kept.cache is None else {self._argument: kept.cache}
            output = self.model(input_ids=piece, use_cache=True, **own)
            kept.cache = getattr(output, self._argument)
            kept.length += piece.shape[1]
            logits.append(output.logits[0])
        return torch.cat(logits)[-keep:] if logits else torch.empty(0, device=self.device)


def _tensors(thing: Any) -> Iterator[Tensor]:
    """All tensors in a cache of any family."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _tensors(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _tensors(value)
    elif type(thing).__module__.startswith("transformers.") and not hasattr(thing, "to_dict"):
        yield from _tensors(vars(thing))
