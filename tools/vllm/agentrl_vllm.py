"""Plug-in for vLLM: a weight-transfer backend that reads a file, for servers without a GPU.

`agentrl serve` puts this folder on the server's PYTHONPATH; vLLM finds the plug-in by the entry point in the
`.dist-info` beside it. It runs inside the server's workers and imports nothing of agentrl.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing to agree on beforehand."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """`path`: a .safetensors file with all weights, in the checkpoint's names."""

    path: str


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads all weights from a file that the trainer wrote."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to open."""

    def start_weight_update(self) -> None:
        """Layer by layer, so that no half of an old model stays."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, str]) -> None:
        """As the base does it, without `torch.accelerator.synchronize`, which a CPU build does not have."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Reads the file into the model."""
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        """Brings the weights into the form that the kernels take."""
        finalize_layerwise_reload(self.model, self.model_config)
        # A head that shares the embedding's weights is loaded with them and gets none itself, so that the reload passes
        # it over; on a CPU it holds a packed copy of its own, which would stay the old one.
        if getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            modules = list(self.model.modules())
            embedding = next(m for m in modules if type(m) is VocabParallelEmbedding)
            for head in (m for m in modules if isinstance(m, ParallelLMHead)):
                head.tie_weights(embedding)
                head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Nothing to close."""


def register() -> None:
    """Entry point; vLLM may call it more than once in a process."""
    if "file" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("file", FileTransfer)
