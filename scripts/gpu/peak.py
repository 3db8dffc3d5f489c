"""The largest sum of tensors that were alive at once, on a CPU: what torch.cuda.max_memory_allocated is for a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block, follows the storages of all tensors that operations return.

    Attributes:
        bytes: the largest sum so far.
    """

    def __init__(self, there: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self._now = 0
        self._alive: dict[int, Any] = {}
        self._add(there)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._add(each for each in tree_leaves(out) if isinstance(each, torch.Tensor))
        return out

    def _add(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._alive:
                self._alive[key] = weakref.finalize(storage, self._drop, key, size)
                self._now += size
        self.bytes = max(self.bytes, self._now)

    def _drop(self, key: int, size: int) -> None:
        self._now -= size
        self._alive.pop(key, None)
