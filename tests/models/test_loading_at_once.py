"""Models that are loaded while others load or sample in the same process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from transformers import PreTrainedModel

from agentrl.config.model import ModelSettings, ScratchModel
from agentrl.engines.embedded.decode import Ways
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.models.load import load_model
from agentrl.types.engine import Sampling

THREADS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    loaded = load_model(ModelSettings(scratch=ScratchModel(hidden=16, layers=1)), texts=["one two three"], seed=0)
    loaded.model.save_pretrained(tmp_path)
    loaded.save_described(str(tmp_path))
    return tmp_path


def test_models_loaded_at_once_are_whole(folder: Path) -> None:
    """transformers replaces `tie_weights` and the default type while it loads: of the process, not of the thread."""
    tie_weights, together = PreTrainedModel.tie_weights, Barrier(THREADS)

    def load(number: int) -> bool:
        together.wait()
        settings = ModelSettings(path=str(folder), dtype="bfloat16" if number % 2 else "float32")
        parameters = list(load_model(settings, seed=0).model.parameters())
        return all(each.device.type == "cpu" and each.dtype == getattr(torch, settings.dtype) for each in parameters)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(5):
            assert all(pool.map(load, range(THREADS)))
    assert PreTrainedModel.tie_weights is tie_weights
    assert torch.get_default_dtype() == torch.float32


def test_settings_of_rows_are_exact_while_a_model_is_loaded() -> None:
    request = DecodeRequest("s", [1], Sampling(temperature=0.7, top_p=0.9), limit=1, seed=0, done=lambda *_: None)
    torch.set_default_dtype(torch.bfloat16)  # as transformers does meanwhile
    try:
        ways = Ways.of([request], 2, torch.device("cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert ways.temperature is not None
    assert ways.top_p is not None
    assert (ways.temperature.tolist(), ways.top_p.tolist()) == (
        torch.tensor([0.7, 1.0]).tolist(),
        torch.tensor([0.9, 1.0]).tolist(),
    )
