"""Prefix-tree packing: samples that share a prefix share its tokens, so that no token is forwarded twice.

Samples are sorted by their tokens, which is the depth-first order of the tree of their prefixes. Each sample then adds
one run of tokens, a `Segment`, to the path that it shares with the sample before it. Attention follows the paths
(`attention.py`); everything else in a transformer treats tokens one by one and never notices.

The layout "rows" shares nothing: every sample is a segment of its own. It serves models that mix tokens by more than
attention (linear attention, convolutions) or by an attention of their own kind.
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
    """The tokens `start` (inclusive) to `end` (exclusive) of a pack, all of them new to one sample.

    Attributes:
        path: int64 [n >= end - start], the pack positions of the whole sample up to `end`, this segment's included.
            Token j of the path sees tokens 0 .. j of it.
    """

    start: int
    end: int
    path: Ints


@dataclass(frozen=True)
class Pack:
    """Samples of one temperature, packed. T unique tokens, Q distinct predictions, E trained tokens of samples.

    Two samples that share a prefix and both train a token of it share the prediction, and each keeps its own entry
    (its own advantage, its own behaviour log-probability).

    Attributes:
        token_ids: int64 [T], depth-first through the prefix tree.
        positions: int64 [T], depth in the tree: the position in every sample that holds the token.
        segments: one per sample that adds tokens; together they cover 0 .. T exactly.
        logit_positions: int64 [Q], where in the pack the prediction is made (the predecessor of the token).
        target_ids: int64 [Q], the token that is predicted.
        samples: indices, in the list given to `pack`, of the samples in the order of the tree.
        trained: for each of them int64, the indices of the tokens that it trains; E in all, the entries.
        prediction_index: int64 [E], which of the Q predictions the entry needs.
        temperature: of the samples.
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
        """int64 [E], the sample of each entry."""
        return np.repeat(self.samples, [len(trained) for trained in self.trained])

    def gather(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """From arrays that are as long as the samples given to `pack`: the E entries' values."""
        parts = [values[index][trained] for index, trained in zip(self.samples, self.trained, strict=True)]
        return np.concatenate(parts)

    def scatter(self, values: Floats, into: Sequence[Floats]) -> None:
        """The inverse of `gather`: writes the E entries' values into arrays as long as the samples."""
        at = 0
        for index, trained in zip(self.samples, self.trained, strict=True):
            into[index][trained] = values[at : at + len(trained)]
            at += len(trained)


def pack(samples: Sequence[TrainingSample], token_budget: int, layout: Layout = "tree") -> list[Pack]:
    """Packs samples into as few forward passes as their order in the tree allows.

    Args:
        token_budget: unique tokens of a pack at most; with the layout "rows", tokens and padding. A sample is never
            split: one that is longer than the budget gets a pack of its own.

    Raises:
        TrainError: a sample trains its first token, which nothing predicts.
    """
    for sample in samples:
        if len(sample.loss_mask) and sample.loss_mask[0]:
            raise TrainError(
                f"episode {sample.episode_id}, branch {sample.branch_id} trains its first token: nothing predicts it",
                remedy="begin every prompt with at least one token that was not sampled",
            )
    # Big-endian bytes of non-negative integers compare like the integers do.
    keys = [sample.token_ids.astype(">i8").tobytes() for sample in samples]
    # Rows of like length side by side need little padding.
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
        # The longest sample comes last, so that all are padded to it.
        size = self.size + new if self.layout == "tree" else (len(self.entries) + 1) * new
        return sample.temperature == self.temperature and (not new or size <= token_budget)

    def add(self, index: int, sample: TrainingSample) -> None:
        shared = self._shared(sample.token_ids)
        new = len(sample.token_ids) - shared
        path = np.concatenate([self._path[:shared], np.arange(self.size, self.size + new)])
        if new:
            self._tokens.append(sample.token_ids[shared:])
            self._positions.append(np.arange(shared, shared + new))
            # The root's first token has no predecessor; its place is filled with itself and never asked for.
            self._parents.append(path[np.maximum(np.arange(shared - 1, shared + new - 1), 0)])
            self._segments.append(Segment(self.size, self.size + new, path))
            self.size += new
        trained = np.flatnonzero(sample.loss_mask)
        self.entries.append((index, trained, path[trained]))
        self._last, self._path = sample.token_ids, path

    def _shared(self, token_ids: Ints) -> int:
        """Length of the prefix shared with the last sample: the longest with any, since they come sorted."""
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
