"""Makes PyPI's torchvision importable with a CPU build of torch. `make vllm-cpu` installs it with a .pth file.

The operators of that wheel are linked to CUDA and do not load. Its Python part requires two of them on import.
Declaring them suffices for vLLM and transformers, which use only image transforms in Python.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class Declares(MetaPathFinder):
    """Declares the operators on the first import of torchvision, so that torch is imported only then."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Returns None, so that later finders are used."""
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


sys.meta_path.insert(0, Declares())
