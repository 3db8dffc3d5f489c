"""The weights of the embedded engine's model: checked and taken over, and on CPUs packed for the matrix products.

A bf16 product on a CPU brings its weights into the processor's layout, at every call anew: a third of a decode step of
SmolLM2-135M. Here linear layers keep them in that layout, made once a version. The products are the same, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from agentrl.types.errors import EngineError


class Packed:
    """The forward pass of a linear layer whose weights are packed. The layer itself has none: they take no memory
    twice, and code that reads them fails."""

    def __init__(self, linear: nn.Linear) -> None:
        self.bias, self.out_features = linear.bias, linear.out_features
        self.take(linear.weight)
        del linear.weight
        linear.forward = self  # type: ignore[method-assign, assignment]

    def take(self, weight: Tensor) -> None:
        """Packs new weights [out, in] of any type."""
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(torch.bfloat16))

    def plain(self) -> Tensor:
        """The weights, bfloat16 [out, in]."""
        weight: Tensor = self._weight.to_dense()
        return weight

    def __call__(self, states: Tensor) -> Tensor:
        if not states.numel():
            return states.new_empty((*states.shape[:-1], self.out_features))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(states, self._weight, self.bias, "none", [], "")
        return product


class Weights:
    """The weights of a model, by the names of its state dict. Names whose weights share memory (a tied head) are one
    weight, called by the first of them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._unpack()  # an engine before this one may have packed them
        own = model.state_dict()
        first: dict[tuple[int, torch.Size], str] = {}
        self._called = {
            name: first.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
            for name, tensor in own.items()
        }
        self._shapes = {name: tensor.shape for name, tensor in own.items()}
        self._plain: dict[str, Tensor] = {}
        self._packed: dict[str, list[Packed]] = {}
        self._find()

    def take(self, new: Mapping[str, Tensor], *, whole: bool = True) -> None:
        """Copies new weights into the model, and packs those that are packed.

        Args:
            whole: all have to be there; of weights that share memory one name is enough.

        Raises:
            EngineError: names or shapes do not fit; the old weights stay.
        """
        given = {self._called[name] for name in new.keys() & self._called.keys()}
        missing = sorted(name for name, called in self._called.items() if called not in given) if whole else []
        unknown = sorted(new.keys() - self._called.keys())
        wrong = [name for name in new.keys() & self._shapes.keys() if new[name].shape != self._shapes[name]]
        for problem, names in (("lack", missing), ("have unknown", unknown), ("have other shapes for", wrong)):
            if names:
                raise EngineError(
                    f"the new weights {problem} {names[0]!r} ({len(names)} in all)",
                    remedy="pass the state_dict of a model of the same configuration",
                )
        for called, value in {self._called[name]: value for name, value in new.items()}.items():
            if called in self._plain:
                self._plain[called].copy_(value)
            for linear in self._packed.get(called, ()):
                linear.take(value)

    def pack(self, works: Callable[[], None]) -> None:
        """Packs the bf16 weights of linear layers on a CPU.

        Args:
            works: raises if the model does not work with packed weights (a family reads those of a layer itself):
                then they are as before.
        """
        if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):  # type: ignore[no-untyped-call]
            return
        linears = [module for module in self._model.modules() if type(module) is nn.Linear]
        fit = [linear for linear in linears if linear.weight.dtype == torch.bfloat16 and linear.weight.is_cpu]
        if not fit:
            return
        self._plain.clear()  # else all would be there twice
        for linear in fit:
            Packed(linear)
        try:
            works()
        except (EngineError, AttributeError, RuntimeError, TypeError, ValueError):
            self._unpack()
        self._find()

    def _unpack(self) -> None:
        for module in self._model.modules():
            if isinstance(packed := module.__dict__.get("forward"), Packed):
                module.weight = nn.Parameter(packed.plain(), requires_grad=False)
                del module.forward

    def _find(self) -> None:
        """Where each weight is, plain and packed."""
        self._plain = {self._called[name]: tensor for name, tensor in self._model.state_dict().items()}
        self._packed = {}
        for path, module in self._model.named_modules():
            if isinstance(packed := module.__dict__.get("forward"), Packed):
                self._packed.setdefault(self._called[f"{path}.weight"], []).append(packed)
