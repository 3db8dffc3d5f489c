"""Documents by the cosine of embeddings, kept on disk in parts, so that building goes on where it was stopped."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from agentrl.tools.builtin.search.minilm import WIDTH, Vectors, encoder

PART = 1024
"""Texts of a part."""

RRF = 60
"""The constant of reciprocal rank fusion (Cormack et al., SIGIR 2009)."""


class Dense:
    """The embeddings of texts.

    Args:
        cache: folder for parts; None keeps nothing on disk.
        told: is called with the number of texts that are ready, after each part.
    """

    def __init__(
        self, texts: Sequence[str], cache: Path | None = None, told: Callable[[int], None] = lambda ready: None
    ) -> None:
        parts = []
        for first in range(0, len(texts), PART):
            own = texts[first : first + PART]
            parts.append(_part(own, cache))
            told(first + len(own))
        self._vectors = np.concatenate(parts) if parts else np.zeros((0, WIDTH), np.float32)

    def find(self, query: str, k: int) -> list[int]:
        """The places of the `k` texts nearest to a query, best first; ties in order of the texts."""
        scores = self._vectors @ encoder().encode([query])[0]
        worst = np.partition(scores, -k)[-k] if k < len(scores) else -2.0
        near = np.flatnonzero(scores >= worst)
        return [int(place) for place in near[np.argsort(-scores[near], kind="stable")][:k]]


def fused(rankings: Sequence[Sequence[int]], k: int) -> list[int]:
    """The `k` best places of several rankings: each gives 1 / (60 + rank); ties in order of the places."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking, 1):
            scores[place] = scores.get(place, 0.0) + 1 / (RRF + rank)
    return sorted(scores, key=lambda place: (-scores[place], place))[:k]


def _part(texts: Sequence[str], cache: Path | None) -> Vectors:
    """The embeddings of a part, from the disk or computed and kept there."""
    if cache is None:
        return encoder().encode(texts)
    digest = hashlib.sha256("\0".join(["1 minilm", *texts]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    path = cache / "minilm" / f"{digest}.npy"
    try:
        found: Vectors = np.load(path)
        if found.shape == (len(texts), WIDTH):
            return found
    except (OSError, ValueError, EOFError):
        pass  # not there, or damaged: computed below
    vectors = encoder().encode(texts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix="draft-")
        with os.fdopen(handle, "wb") as file:
            np.save(file, vectors)
        os.replace(draft, path)
    except OSError:
        pass  # no place to keep it: the next process computes it again
    return vectors
