"""Prefix-tree packing: samples share the tokens of common prefixes, so that no token is forwarded twice.

Sorting samples by their tokens gives the depth-first order of their prefix tree. Each sample then adds one run of
tokens, a `Segment`, to the path that it shares with the previous sample. Attention follows the paths (`attention.py`);
all other layers of a transformer process tokens one by one and need no change.

The layout "rows" shares nothing: each sample is one segment. It is for models that mix tokens by other means than
attention (linear attention, convolutions), or that have their own kind of attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

Layout = Literal["tree", "rows"]
"""`tree`: shared prefixes are forwarded once. `rows`: one padded sample per branch, with the model's own attention."""


@dataclass(frozen=True)
class Segment:
    """The tokens `start` (inclusive) to `end` (exclusive) of a pack: the tokens that one sample adds.

    Attributes:
        path: int64 [n >= end - start], the pack positions of the sample up to `end`, including this segment. Token j of
            the path sees tokens 0 .. j.
    """

    start: int
    end: int
    path: Ints


@dataclass(frozen=True)
class Pack:
    """Packed samples of one temperature: T unique tokens, Q distinct predictions, E entries (trained tokens of
    samples).

    If two samples train the same token of a shared prefix, they share the prediction, and each has its own entry (with
    its own advantage and behaviour log-probability).

    Attributes:
        token_ids: int64 [T], depth-first through the prefix tree.
        positions: int64 [T], depth in the tree: the position of the token in its samples.
        segments: one per sample that adds tokens; together they cover 0 .. T exactly.
        logit_positions: int64 [Q], pack position of each prediction (the predecessor of the target token).
        target_ids: int64 [Q], the predicted token.
        samples: indices of the samples in the list given to `pack`, in tree order.
        trained: for each sample the int64 indices of its trained tokens; E in all.
        prediction_index: int64 [E], index of each entry's prediction among the Q.
        temperature: the sampling temperature of the samples.
        layout: "rows" if no two segments share a token.
    """

    token_ids: Ints
    positions: Ints
    segments: list[Segment]
    logit_positions: Ints
    target_ids: Ints
    samples: list[int]
    trained: list[Ints]
    prediction_index: Ints
    temperature: float
    layout: Layout = "tree"

    @property
    def sample(self) -> Ints:
        """The sample of each entry, int64 [E]."""
        return np.repeat(self.samples, [len(trained) for trained in self.trained])

    def gather(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The values of the E entries, from one array per sample (with the sample's length)."""
        parts = [values[index][trained] for index, trained in zip(self.samples, self.trained, strict=True)]
        return np.concatenate(parts)

    def scatter(self, values: Floats, into: Sequence[Floats]) -> None:
        """The inverse of `gather`: writes the values of the E entries into one array per sample."""
        at = 0
        for index, trained in zip(self.samples, self.trained, strict=True):
            into[index][trained] = values[at : at + len(trained)]
            at += len(trained)


def pack(samples: Sequence[TrainingSample], token_budget: int, layout: Layout = "tree") -> list[Pack]:
    """Packs samples greedily, in tree order, into forward passes.

    Args:
        token_budget: maximum number of unique tokens per pack; with the layout "rows", of tokens and padding. Samples
            are not split: a sample that is longer than the budget is packed alone.

    Raises:
        TrainError: a sample trains its first token, which has no prediction.
    """
    for sample in samples:
        if len(sample.loss_mask) and sample.loss_mask[0]:
            raise TrainError(
                f"episode {sample.episode_id}, branch {sample.branch_id} trains its first token: nothing predicts it",
                remedy="begin every prompt with at least one token that was not sampled",
            )
    # Sorted by their big-endian bytes, equal prefixes lie side by side. Placeholders of images (negative) come last.
    keys = [sample.token_ids.astype(">i8").tobytes() for sample in samples]
    # Rows of similar length need little padding.
    lengths = [len(sample.token_ids) if layout == "rows" else 0 for sample in samples]
    order = sorted(range(len(samples)), key=lambda index: (samples[index].temperature, lengths[index], keys[index]))

    packs: list[_OpenPack] = []
    for index in order:
        if not packs or not packs[-1].fits(samples[index], token_budget):
            packs.append(_OpenPack(samples[index].temperature, layout))
        packs[-1].add(index, samples[index])
    return [each.close() for each in packs]


class _OpenPack:
    """A pack to which samples are added in sorted order."""

    def __init__(self, temperature: float, layout: Layout) -> None:
        self.temperature, self.layout = temperature, layout
        self.size = 0
        self.entries: list[tuple[int, Ints, Ints]] = []  # sample index, trained token indices, their pack positions
        self._last = np.empty(0, np.int64)
        self._path = np.empty(0, np.int64)
        self._tokens: list[Ints] = []
        self._positions: list[Ints] = []
        self._parents: list[Ints] = []
        self._segments: list[Segment] = []

    def fits(self, sample: TrainingSample, token_budget: int) -> bool:
        new = len(sample.token_ids) - self._shared(sample.token_ids)
        # Samples come in order of length: all rows are padded to the newest.
        size = self.size + new if self.layout == "tree" else (len(self.entries) + 1) * new
        return sample.temperature == self.temperature and (not new or size <= token_budget)

    def add(self, index: int, sample: TrainingSample) -> None:
        shared = self._shared(sample.token_ids)
        new = len(sample.token_ids) - shared
        path = np.concatenate([self._path[:shared], np.arange(self.size, self.size + new)])
        if new:
            self._tokens.append(sample.token_ids[shared:])
            self._positions.append(np.arange(shared, shared + new))
            # The first token of the root has no predecessor: it gets itself, which is never used.
            self._parents.append(path[np.maximum(np.arange(shared - 1, shared + new - 1), 0)])
            self._segments.append(Segment(self.size, self.size + new, path))
            self.size += new
        trained = np.flatnonzero(sample.loss_mask)
        self.entries.append((index, trained, path[trained]))
        self._last, self._path = sample.token_ids, path

    def _shared(self, token_ids: Ints) -> int:
        """Length of the prefix shared with the previous sample: in sorted order the longest shared with any."""
        if self.layout == "rows":
            return 0
        n = min(len(self._last), len(token_ids))
        differs = np.flatnonzero(self._last[:n] != token_ids[:n])
        return int(differs[0]) if len(differs) else n

    def close(self) -> Pack:
        token_ids = np.concatenate(self._tokens) if self._tokens else np.empty(0, np.int64)
        parents = np.concatenate(self._parents) if self._parents else np.empty(0, np.int64)
        nodes, prediction_index = np.unique(np.concatenate([at for _, _, at in self.entries]), return_inverse=True)
        return Pack(
            token_ids=token_ids,
            positions=np.concatenate(self._positions) if self._positions else np.empty(0, np.int64),
            segments=self._segments,
            logit_positions=parents[nodes],
            target_ids=token_ids[nodes],
            samples=[index for index, _, _ in self.entries],
            trained=[trained for _, trained, _ in self.entries],
            prediction_index=prediction_index,
            temperature=self.temperature,
            layout=self.layout,
        )
