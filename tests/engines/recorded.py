"""A capture on the CPU that behaves as one on CUDA: it records the operations of a step, and replays just those.

What Python did meanwhile is not repeated, results land where they landed before, and recording leaves no trace in the
tensors that the step writes to. What a capture on CUDA forbids is forbidden.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentrl.engines.embedded.capturable import forbidden
from agentrl.engines.embedded.graphs import Step


class Forbidden(RuntimeError):
    """A capture would fail here."""


def check(function: Any, args: Any, kwargs: Any) -> None:
    """Raises `Forbidden` for an operation that CUDA cannot capture."""
    if (found := forbidden(function, args, kwargs)) is not None:
        raise Forbidden(found)


class Checking(TorchDispatchMode):
    """Within the block, what a capture forbids raises `Forbidden`."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check(function, args, kwargs or {})
        return function(*args, **(kwargs or {}))


class Recording(TorchDispatchMode):
    """The operations within the block."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._own: set[int] = set()  # storages that came into being here
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        check(function, args, kwargs)
        for argument, value in zip(function._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._save(value)
        result = function(*args, **kwargs)
        inputs = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        fresh = [tensor for tensor in outputs if _storage(tensor) not in inputs]
        self._own |= {_storage(tensor) for tensor in fresh}
        if fresh or function._schema.is_mutable:
            self.operations.append((function, args, kwargs, outputs if fresh else []))
        return result

    def _save(self, tensor: Tensor) -> None:
        if _storage(tensor) not in self._own | self._before.keys():
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())  # type: ignore[call-overload]
            self._before[_storage(tensor)] = whole, whole.clone()

    def undo(self) -> None:
        """Puts back what the recording wrote to tensors that were there before."""
        for tensor, saved in self._before.values():
            tensor.copy_(saved)

    def replay(self) -> None:
        """The same operations on the same memory."""
        for function, args, kwargs, outputs in self.operations:
            result = [leaf for leaf in tree_leaves(function(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for kept, new in zip(outputs, result, strict=bool(outputs)):
                kept.copy_(new)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class RecordedCapture:
    """The `Capture` of the tests. `captures` counts them, `tries` also those that failed, `forgotten` how often all
    were dropped. `failing` holds the numbers of the tries that fail, as when another thread waits for the device."""

    def __init__(self, failing: Container[int] = ()) -> None:
        self.captures = self.tries = self.forgotten = 0
        self._failing = failing

    def forget(self) -> None:
        self.forgotten += 1

    def __call__(self, step: Step) -> Step:
        self.tries += 1
        if self.tries in self._failing:
            raise RuntimeError("operation not permitted when stream is capturing")
        recording = Recording()
        with recording:
            step()
        recording.undo()
        self.captures += 1
        return recording.replay
