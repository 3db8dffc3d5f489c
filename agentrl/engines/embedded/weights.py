"""The weights of the embedded engine's model: checks and copies updates, and packs bf16 weights on CPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from agentrl.engines.embedded.forward.product import Product, WeightPart, packed_part, unpack
from agentrl.types.errors import EngineError

_log = logging.getLogger(__name__)


class Weights:
    """The weights of a model by the names of its state dict.

    Names that share memory (a tied head) are one weight, under the first of the names.

    Args:
        products: joined products of the model. Every other linear layer gets its own product.
    """

    def __init__(self, model: nn.Module, products: Sequence[Product] = ()) -> None:
        self._model, self._products = model, products
        own = model.state_dict()
        first: dict[tuple[int, torch.Size], str] = {}
        self._called = {
            name: first.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
            for name, tensor in own.items()
        }
        self._shapes = {name: tensor.shape for name, tensor in own.items()}
        self._plain: dict[str, list[Tensor]] = {}
        self._packed: dict[str, list[WeightPart]] = {}
        self._find()

    def take(self, new: Mapping[str, Tensor], *, whole: bool = True) -> None:
        """Copies new weights into the model, and packs those of packed layers.

        Args:
            whole: require all weights; one name is enough for weights that share memory.

        Raises:
            EngineError: names or shapes do not match; the old weights remain.
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
        packed: dict[Product, dict[int, Tensor]] = {}
        for called, value in {self._called[name]: value for name, value in new.items()}.items():
            for tensor in self._plain.get(called, ()):
                tensor.copy_(value)
            for part in self._packed.get(called, ()):
                packed.setdefault(part.product, {})[part.number] = value
        for product, values in packed.items():
            product.take(values)

    def pack(self, works: Callable[[], None]) -> None:
        """Packs the bf16 weights of linear layers on a CPU.

        Args:
            works: raises if the model does not work with packed weights (some families read a layer's weight); they
                are unpacked then.
        """
        if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):  # type: ignore[no-untyped-call]
            return
        joint = {linear for product in self._products for linear in product.linears}
        linears = [m for m in self._model.modules() if type(m) is nn.Linear and m not in joint]
        fit = [product for product in (*self._products, *map(Product, linears)) if product.packs]
        if not fit:
            return
        self._plain.clear()  # drops references, so that each weight is freed when it is packed
        for product in fit:
            product.pack()
        try:
            works()
        except (EngineError, AttributeError, RuntimeError, TypeError, ValueError) as refusal:
            _log.info("weights are not packed, because %s", refusal)
            unpack(self._model)
        self._find()

    def _find(self) -> None:
        """Finds the plain tensors and packed parts of each weight."""
        self._plain = {}
        for name, tensor in self._model.state_dict().items():
            if all(tensor.data_ptr() != same.data_ptr() for same in self._plain.setdefault(self._called[name], [])):
                self._plain[self._called[name]].append(tensor)
        self._packed = {}
        for path, module in self._model.named_modules():
            if (part := packed_part(module)) is not None:
                self._packed.setdefault(self._called[f"{path}.weight"], []).append(part)
