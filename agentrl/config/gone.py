"""Settings that recipes no longer have: the error says what became of one, and stored runs are read without them."""

from __future__ import annotations

from typing import Any

GONE: dict[tuple[str | int, ...], str] = {
    ("engine", "cuda_graphs"): "remove the key: the torch engine launches every operation; the engine for GPUs is vllm",
}
"""What to do instead, by the path of keys."""


def without_gone(stored: Any, path: tuple[str | int, ...] = ()) -> Any:
    """A stored recipe, or the section of it at `path`, without such settings."""
    if not isinstance(stored, dict):
        return stored
    return {key: without_gone(value, (*path, key)) for key, value in stored.items() if (*path, key) not in GONE}
