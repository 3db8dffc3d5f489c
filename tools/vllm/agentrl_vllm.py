"""vLLM plug-in: a weight-transfer backend that reads a file, for servers without a GPU.

`agentrl serve` puts this folder on the server's PYTHONPATH; vLLM finds the plug-in by the entry point in the
neighbouring `.dist-info`. It runs inside the server's workers and imports nothing of agentrl.
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
    """Empty init settings."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """Update message. `path`: a .safetensors file with all weights, under the checkpoint's names."""

    path: str


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads all weights from a file written by the trainer."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Does nothing."""

    def start_weight_update(self) -> None:
        """Starts a layerwise reload, so that no part of the old model stays."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Same as the base class, without `torch.accelerator.synchronize` on CPU builds, which lack it."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Loads the file into the model."""
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        """Converts the weights to the form of the kernels."""
        finalize_layerwise_reload(self.model, self.model_config)
        # The reload skips a head with tied weights, because it receives none itself; on a CPU the head holds its own
        # packed copy, which would stay outdated.
        if getattr(self.model_config.hf_text_config, "tie_word_embeddings", False):
            modules = list(self.model.modules())
            embedding = next(m for m in modules if type(m) is VocabParallelEmbedding)
            for head in (m for m in modules if isinstance(m, ParallelLMHead)):
                head.tie_weights(embedding)
                head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Does nothing."""


def register() -> None:
    """Entry point; vLLM may call it more than once in a process."""
    if "file" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("file", FileTransfer)
