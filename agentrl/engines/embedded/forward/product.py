"""Matrix products of linear layers: layers with the same input are joined, and on CPUs bf16 weights are packed.

A bf16 product on a CPU converts its weights to the processor's layout at every call, which is a third of a decode step
of SmolLM2-135M. Packed weights have that layout, and are packed once per version. The results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Product:
    """The product of an input with the weights of several linear layers, [..., sum of their output features].

    The layers' weights and biases become views of one tensor.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        self.linears = linears
        self._sizes = [linear.out_features for linear in linears]
        self._weight: Tensor | None = _one(linears, "weight")
        self._bias = None if linears[0].bias is None else _one(linears, "bias")
        self._packed: Tensor | None = None

    def __call__(self, states: Tensor) -> Tensor:
        if self._weight is not None:
            return functional.linear(states, self._weight, self._bias)
        if not states.numel():
            return states.new_empty((*states.shape[:-1], sum(self._sizes)))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(states, self._packed, self._bias, "none", [], "")
        return product

    @property
    def packs(self) -> bool:
        """True if its weights can be packed: bf16 on a CPU, not packed yet."""
        return self._weight is not None and self._weight.dtype == torch.bfloat16 and self._weight.is_cpu

    def pack(self) -> None:
        """Packs the weights and deletes those of the layers, which saves memory. Code that reads them fails."""
        assert self._weight is not None
        self._packed = _packed(self._weight)
        self._weight = None
        for number, linear in enumerate(self.linears):
            del linear.weight
            linear.forward = WeightPart(self, number)  # type: ignore[method-assign, assignment]

    def unpack(self) -> None:
        """Restores the weights of the layers."""
        self._weight, self._packed = self._plain(), None
        for linear, weight in zip(self.linears, torch.split(self._weight, self._sizes), strict=True):
            linear.weight = nn.Parameter(weight, requires_grad=False)
            del linear.forward

    def take(self, new: Mapping[int, Tensor]) -> None:
        """Packs new weights of any dtype by index of the layer. The others keep their values."""
        parts = (
            list(torch.split(self._plain(), self._sizes))
            if len(new) < len(self._sizes)
            else [torch.empty(0)] * len(new)
        )
        for number, weight in new.items():
            parts[number] = weight.detach().to(torch.bfloat16)
        self._packed = _packed(torch.cat(parts))

    def part(self, number: int, states: Tensor) -> Tensor:
        """The product of one layer."""
        return torch.split(self(states), self._sizes, -1)[number]

    def _plain(self) -> Tensor:
        assert self._packed is not None
        plain: Tensor = self._packed.to_dense()
        return plain


class WeightPart:
    """Forward pass of a linear layer with packed weights."""

    def __init__(self, product: Product, number: int) -> None:
        self.product, self.number = product, number

    def __call__(self, states: Tensor) -> Tensor:
        return self.product.part(self.number, states)


def packed_part(module: nn.Module) -> WeightPart | None:
    """The `WeightPart` of a packed linear layer; None for all other modules."""
    forward = module.__dict__.get("forward")
    return forward if isinstance(forward, WeightPart) else None


def unpack(model: nn.Module) -> None:
    """Restores the weights of all linear layers of a model."""
    for product in {part.product: None for module in model.modules() if (part := packed_part(module)) is not None}:
        product.unpack()


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def _one(linears: Sequence[nn.Linear], name: str) -> Tensor:
    """Joins the weights or biases of layers into one tensor, and makes them views of it."""
    own = [getattr(linear, name).detach() for linear in linears]
    first, sizes = own[0], [len(x) for x in own]
    ends = [sum(x.nbytes for x in own[: number + 1]) for number in range(len(own))]
    adjacent = [x.data_ptr() - first.data_ptr() + x.nbytes for x in own] == ends and all(x.is_contiguous() for x in own)
    if adjacent and len({x.untyped_storage().data_ptr() for x in own}) == 1:  # joined by an earlier engine
        whole: Tensor = first.as_strided((sum(sizes), *first.shape[1:]), first.stride(), first.storage_offset())
        return whole
    whole = torch.cat(own)
    for linear, part in zip(linears, torch.split(whole, sizes), strict=True):
        setattr(linear, name, nn.Parameter(part, requires_grad=False))
    return whole
