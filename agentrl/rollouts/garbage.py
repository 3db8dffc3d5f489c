"""Garbage collection while episodes run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 10_000
"""Allocations between two collections of young objects (Python: 700). A turn makes some hundred, rarely a cycle."""

_running = 0
_before = gc.get_threshold()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Makes garbage collections rarer, and excludes existing objects (modules, models, tokenizers).

    Episodes are trees of records, which reference counts free. Otherwise a full collection takes as long as hundreds of
    turns, once in some thousand. Runs may overlap: the last one restores the settings.
    """
    global _running, _before
    if not _running:
        _before = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(max(ALLOCATIONS, _before[0]), *_before[1:])
    _running += 1
    try:
        yield
    finally:
        _running -= 1
        if not _running:
            gc.set_threshold(*_before)
            gc.unfreeze()
