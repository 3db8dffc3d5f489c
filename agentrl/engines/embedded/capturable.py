"""What a CUDA graph cannot capture: operations for which the host waits for the device or hands it memory of its own.

A capture that meets one fails, and costs more than the try: so a step is watched once, when it is run as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FORBIDDEN = {
    "_local_scalar_dense", "is_nonzero", "equal", "item",  # read a value
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount",  # size by value
    "lift_fresh", "repeat_interleave",  # copy from the host; size by value
}  # fmt: skip
"""Operations for which the host waits for the device, or which copy from its unpinned memory."""


def forbidden(function: Any, args: Any, kwargs: Any) -> str | None:
    """What of a call of an operation (`torch._ops.OpOverload`) CUDA cannot capture; None if nothing."""
    name = function.overloadpacket.__name__
    if name in FORBIDDEN:
        return str(function)
    if name in ("index", "index_put", "index_put_") and any(
        isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in tree_leaves(args[1])
    ):
        return f"{function} by a mask"
    if name in ("_to_copy", "copy_"):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        devices.add(torch.device(kwargs.get("device") or tensors[0].device).type)
        if len(devices) > 1:
            return f"{function} between {devices}"
    return None


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs what is within the block as it is.

    Attributes:
        found: the first operation that a capture would fail at, in words.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: str | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or forbidden(function, args, kwargs or {})
        return function(*args, **(kwargs or {}))
