"""Dense retrieval by cosine of embeddings, cached on disk in parts, so that an interrupted build resumes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agentrl.tools.builtin.search.minilm import WIDTH, Vectors, encoder
from agentrl.types.reporter import report_work

PART = 1024
"""Texts per part."""

_NAME = "embeddings of the search index"

RRF = 60
"""Constant of reciprocal rank fusion (Cormack et al., SIGIR 2009)."""


class Dense:
    """Embeddings of texts.

    Args:
        cache: folder for parts; None: no cache on disk.
    """

    def __init__(self, texts: Sequence[str], cache: Path | None = None) -> None:
        parts = []
        report_work(_NAME, 0, len(texts))
        for first in range(0, len(texts), PART):
            own = texts[first : first + PART]
            parts.append(_part(own, cache, first, len(texts)))
            report_work(_NAME, first + len(own), len(texts))
        self._vectors = np.concatenate(parts) if parts else np.zeros((0, WIDTH), np.float32)

    def find(self, query: str, k: int) -> list[int]:
        """Returns the indices of the `k` texts nearest to a query, best first; ties in order of the texts."""
        scores = self._vectors @ encoder().encode([query])[0]
        worst = np.partition(scores, -k)[-k] if k < len(scores) else -2.0
        near = np.flatnonzero(scores >= worst)
        return [int(place) for place in near[np.argsort(-scores[near], kind="stable")][:k]]


def fused(rankings: Sequence[Sequence[int]], k: int) -> list[int]:
    """Fuses rankings: each gives 1 / (60 + rank); returns the `k` best indices, ties in order of the indices."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking, 1):
            scores[place] = scores.get(place, 0.0) + 1 / (RRF + rank)
    return sorted(scores, key=lambda place: (-scores[place], place))[:k]


def _part(texts: Sequence[str], cache: Path | None, before: int, total: int) -> Vectors:
    """Loads the embeddings of a part from the cache, or computes and caches them.

    Args:
        before: texts of the parts before it.
        total: texts of all parts.
    """

    def encoded() -> Vectors:
        return encoder().encode(texts, lambda ready: report_work(_NAME, before + ready, total))

    if cache is None:
        return encoded()
    digest = hashlib.sha256("\0".join(["1 minilm", *texts]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    path = cache / "minilm" / f"{digest}.npy"
    try:
        found: Vectors = np.load(path)
        if found.shape == (len(texts), WIDTH):
            return found
    except (OSError, ValueError, EOFError):
        pass  # missing or damaged: computed below
    vectors = encoded()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix="draft-")
        with os.fdopen(handle, "wb") as file:
            np.save(file, vectors)
        os.replace(draft, path)
    except OSError:
        pass  # cache not writable: the next process computes it again
    return vectors
