"""A model small enough to run everywhere, and what it says in a plain forward pass."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentrl.engines.embedded.engine import TorchEngine
from tests.lean import no_curves

__all__ = ["no_curves"]

VOCAB = 97


def make_model(seed: int = 0, **changes: object) -> PreTrainedModel:
    """A Llama with grouped-query attention and sharp enough logits to tell tokens apart."""
    settings: dict[str, object] = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "initializer_range": 0.2, "tie_word_embeddings": True, "attn_implementation": "sdpa",
    }  # fmt: skip
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


def of_family(name: str, **changes: object) -> PreTrainedModel:
    """A small model of a family of transformers."""
    sizes = {
        "vocab_size": 600, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
    }  # fmt: skip
    made: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**sizes, **changes}))
    return made


@torch.no_grad()
def plain_logprobs(model: PreTrainedModel, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """[n - 1]: log-probability of each token but the first, from one forward pass without a cache."""
    logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.fixture
async def engine() -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(make_model(), max_batch=16)
    yield engine
    await engine.close()
