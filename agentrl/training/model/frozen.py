"""Frozen linear layers under autocast: their weights are cast once, not in every pass."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def cast_frozen(model: nn.Module) -> None:
    """Makes the frozen linear layers of a model keep a bfloat16 copy of their weights for passes under autocast.

    The copy takes half the memory of the float32 weights. Results stay bit-identical.
    """
    for module in model.modules():
        if type(module) is nn.Linear and not module.weight.requires_grad:
            module.__dict__.setdefault("forward", FrozenLinear(module))


class FrozenLinear:
    """The forward pass of a linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        self._linear = linear
        self._cast_of: tuple[int, int] | None = None
        self._weight = torch.empty(0)

    def __call__(self, states: Tensor) -> Tensor:
        weight, bias = self._linear.weight, self._linear.bias
        if weight.requires_grad or not torch.is_autocast_enabled(states.device.type):
            return functional.linear(states, weight, bias)
        if self._cast_of != (cast_of := (weight.data_ptr(), weight._version)):  # new weights may have been loaded
            self._cast_of, self._weight = cast_of, weight.detach().bfloat16()
        return functional.linear(states, self._weight, bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenLinear:
        return FrozenLinear(copy.deepcopy(self._linear, memo))
