"""Models of known sizes with random weights: what they cost is what trained ones cost."""

from __future__ import annotations

from typing import Any

import torch

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 512},
    "small": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 4096},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151936},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "vocab_size": 151936},
}  # fmt: skip
"""The shapes of Qwen2.5, but for `tiny` and `small`."""


def random_model(size: str, dtype: torch.dtype, device: str, *, sharp: bool = False) -> Any:
    """A Qwen2 with tied embeddings, for 32,768 positions. `sharp`: with a head of its own, whose logits are as large as
    those of a trained model."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(**SIZES[size], max_position_embeddings=32_768, tie_word_embeddings=not sharp, use_cache=True)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    if sharp:
        with torch.no_grad():
            model.lm_head.weight.mul_(3 / config.hidden_size**0.5 / config.initializer_range)
    return model.to(dtype).eval()


LLAMAS: dict[str, dict[str, int]] = {
    "quickstart": {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
                   "num_key_value_heads": 2, "vocab_size": 600},
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "vocab_size": 49152},
}  # fmt: skip
"""The shapes of the quickstart's policy and of SmolLM2-135M."""


def llama(size: str) -> Any:
    """A Llama in float32 on the CPU with tied embeddings, whose logits are as large as those of a trained model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    deviation = 3 / LLAMAS[size]["hidden_size"] ** 0.5
    config = LlamaConfig(
        **LLAMAS[size], max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=deviation
    )
    return LlamaForCausalLM(config).eval()
