"""A small model in a folder, and a real vLLM server of it."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.model import ModelSettings, ScratchModel
from agentrl.config.train import TrainSettings
from agentrl.models.load import LoadedModel, load_model
from agentrl.training.trainer import Trainer
from agentrl.types.engine import Completion
from agentrl.types.sample import TrainingSample

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("AGENTRL_VLLM_PYTHON") or str(ROOT / ".venv-vllm/bin/python")
TEXTS = ["<|im_start|>user\nCount to 3, then say stop.<|im_end|>\n<|im_start|>assistant\n1 2 3 stop<|im_end|>\n"] * 8


def small_model(folder: Path, *, context: int = 1024) -> LoadedModel:
    """A Llama with sharp logits (tokens can be told apart), saved as a model folder."""
    scratch = ScratchModel(
        hidden=64, layers=2, heads=2, kv_heads=1, vocab_size=320, max_context=context, init_range=0.2
    )
    loaded = load_model(ModelSettings(scratch=scratch), texts=TEXTS, seed=0)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return loaded


def tokens_sampled(url: str) -> float:
    """Tokens that a server has sampled, as it counts them."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def tokenizer_of(loaded: LoadedModel) -> HFTokenizer:
    return HFTokenizer(loaded.tokenizer)


def other_weights(model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Weights near those of a model, far enough to change every log-probability visibly."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.03 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied
    }


def row_of(prompt: list[int], said: Completion, temperature: float) -> TrainingSample:
    """The completion as the trainer takes it."""
    n = len(prompt) + len(said.token_ids)
    mask = np.arange(n) >= len(prompt)
    logprobs = np.zeros(n, np.float32)
    logprobs[mask] = said.logprobs
    ids = np.array(prompt + said.token_ids, np.int64)
    return TrainingSample(ids, mask, logprobs, np.zeros(n, np.float32), "e", "g", 0, temperature)


def worst_difference(
    model, weights: dict[int, dict[str, torch.Tensor]], rows: list[TrainingSample], said: list[Completion]
) -> float:
    """Largest distance between what the engine said of a token and what the trainer says under the token's version."""
    under = {}
    for version, state in weights.items():
        model.load_state_dict(state, strict=False)
        model.tie_weights()
        under[version] = Trainer(model, TrainSettings()).logprobs(rows)
    worst = 0.0
    for index, (row, completion) in enumerate(zip(rows, said, strict=True)):
        begin = len(row.token_ids) - len(completion.token_ids)
        for span in completion.versions:
            part = slice(begin + span.start, begin + span.end)
            worst = max(worst, float(np.abs(under[span.version][index][part] - row.behaviour_logprob[part]).max()))
    return worst


def write_adapter(folder: Path, model: PreTrainedModel, *, seed: int, rank: int = 4) -> dict[str, torch.Tensor]:
    """A LoRA adapter as peft saves it, for the query projections; the weights that it comes to, merged."""
    generator = torch.Generator().manual_seed(seed)
    adapter, merged = {}, {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    for layer in range(model.config.num_hidden_layers):
        name = f"model.layers.{layer}.self_attn.q_proj"
        weight = merged[f"{name}.weight"]
        down = torch.randn(rank, weight.shape[1], generator=generator) * 0.3
        up = torch.randn(weight.shape[0], rank, generator=generator) * 0.3
        adapter |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
        merged[f"{name}.weight"] = weight + 2.0 * up @ down
    folder.mkdir()
    save_file(adapter, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return merged
