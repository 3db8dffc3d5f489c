"""Model families as they are published: their architecture in a tiny size, and their chat template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

# Heads of 32: vLLM's attention on CPUs takes none smaller.
SIZES: dict[str, Any] = dict(
    hidden_size=128, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
_EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=32)
_HEADS = dict(head_dim=32)
_GEMMA = dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=16)
_LINEAR = dict(
    head_dim=64, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=128, linear_value_head_dim=128
)
_CONVOLUTIONS = dict(layer_types=["conv", "full_attention"] * 2, conv_dim=128, block_dim=128)
_SHARED = dict(n_routed_experts=4, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1)
_LATENT = dict(
    q_lora_rank=16, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=32, v_head_dim=32, num_key_value_heads=4,
    num_experts_per_tok=2, moe_intermediate_size=32, topk_method="noaux_tc", scoring_func="sigmoid", **_SHARED,
)  # fmt: skip
_MAMBA = dict(
    mamba_num_heads=4, mamba_head_dim=32, ssm_state_size=16, n_groups=2, head_dim=32, moe_intermediate_size=32,
    moe_shared_expert_intermediate_size=32,
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A row of docs/models.md.

    Attributes:
        name: as its users call it.
        kind: `model_type` of its configuration, in transformers.
        template: of tests/chat/families.py.
        config: what differs from `SIZES`.
        shipped: the name of the template that agentrl ships for it; None: its own is taken.
    """

    name: str
    kind: str
    template: str
    config: dict[str, Any] = field(default_factory=dict)
    shipped: str | None = None


FAMILIES = (
    Family("Qwen2.5", "qwen2", "qwen2_5"),
    Family("Qwen3 (hybrid thinking)", "qwen3", "qwen3", _HEADS),
    Family("Qwen3-Instruct-2507", "qwen3", "qwen3_instruct_2507", _HEADS),
    Family("Qwen3 MoE", "qwen3_moe", "qwen3", _EXPERTS),
    Family("Qwen3-Coder", "qwen3_moe", "qwen3_8", _EXPERTS),
    Family("Qwen3-Next", "qwen3_next", "qwen3_instruct_2507",
           {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}),
    Family("Qwen3.5", "qwen3_5_text", "qwen3_5_think", _LINEAR),
    Family("Qwen3.5, not thinking", "qwen3_5_text", "qwen3_5_nothink", _LINEAR),
    Family("Qwen3.6 MoE", "qwen3_5_moe_text", "qwen3_6",
           {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 32}),
    Family("GLM-4.5", "glm4_moe", "glm4moe", {**_EXPERTS, **_SHARED}),
    Family("gpt-oss", "gpt_oss", "gptoss", {**_EXPERTS, "sliding_window": 16}),
    Family("DeepSeek-V3", "deepseek_v3", "deepseekv3", _LATENT, shipped="deepseek-v3"),
    Family("DeepSeek-R1-Distill", "qwen2", "deepseek_r1_distill", shipped="deepseek-v3"),
    Family("Kimi-K2", "deepseek_v3", "kimi-k2", _LATENT),
    Family("Llama 3", "llama", "llama3"),
    Family("Llama 3.1, 3.3", "llama", "llama3_1"),
    Family("Llama 3.2", "llama", "llama3_2"),
    Family("Mistral 7B v0.3", "mistral", "mistral-v3", _HEADS),
    Family("Mistral Small", "mistral", "mistral-v11", _HEADS),
    Family("Mixtral", "mixtral", "mixtral", _EXPERTS),
    Family("Gemma", "gemma", "gemma", _HEADS),
    Family("Gemma 2", "gemma2", "gemma", {**_GEMMA, "attn_logit_softcapping": 50.0}),
    Family("Gemma 3", "gemma3_text", "gemma3",
           {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    Family("Gemma 4", "gemma4_text", "gemma4_v5",
           {**_HEADS, "global_head_dim": 32, "vocab_size_per_layer_input": 600, "hidden_size_per_layer_input": 32}),
    Family("Phi-3", "phi3", "phi3"),
    Family("Phi-3.5", "phi3", "phi3_5"),
    Family("Phi-4-mini", "phi3", "phi-4"),
    Family("Granite 3", "granite", "granite-3"),
    Family("SmolLM2", "llama", "smollm2"),
    Family("SmolLM3", "smollm3", "smollm3"),
    Family("Nemotron 3 Nano", "nemotron_h", "nemotron_3_nano", _MAMBA),
    Family("Nemotron 3 Super", "nemotron_h", "nemotron_3_super", _MAMBA),
    Family("LFM2", "lfm2", "lfm2", _CONVOLUTIONS),
    Family("LFM2.5", "lfm2", "lfm2_2_5", _CONVOLUTIONS),
    Family("MiniMax-M2", "minimax_m2", "minimax-m2", 
           {**_EXPERTS, "rotary_dim": 32, "scoring_func": "sigmoid", "use_routing_bias": True}),
    Family("Aya Expanse", "cohere", "cohere"),
    Family("Tiny Aya", "cohere2", "cohere2", {"sliding_window": 16}),
    Family("Command R7B", "cohere2", "command-r7b", {"sliding_window": 16}),
    Family("OLMo 3", "olmo3", "olmo3", {"sliding_window": 16}),
    Family("Seed-OSS", "seed_oss", "seed-oss", _HEADS),
    Family("Laguna", "laguna", "laguna",
           {**_EXPERTS, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2,
            "num_attention_heads_per_layer": [4, 8] * 2, "shared_expert_intermediate_size": 32}),
    Family("Apertus", "apertus", "apertus", _HEADS, shipped="apertus"),
    Family("ERNIE 4.5", "ernie4_5", "ernie-4.5", _HEADS),
    Family("Hunyuan", "hunyuan_v1_dense", "hunyuan", _HEADS),
)  # fmt: skip


def tiny_model(family: Family, vocabulary: int) -> Any:
    """Random weights, large enough that attention is more than a mean."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from agentrl.models.load import attention_for

    torch.manual_seed(0)
    config = AutoConfig.for_model(family.kind, **{**SIZES, "vocab_size": vocabulary, **family.config})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_for(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(2.0)
    return model
