"""The embedded engine on families beyond plain decoders: windows, latent attention, sinks, caps, linear attention."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import attention_for
from agentrl.types.engine import Completion, Sampling
from agentrl.types.errors import EngineError

from .conftest import plain_logprobs

SIZES = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)
LINEAR = dict(
    head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8
)
LATENT = dict(
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=4, num_key_value_heads=4,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_group=1, topk_group=1, n_shared_experts=1,
    first_k_dense_replace=1,
)  # fmt: skip
IN_BATCHES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 6},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 6,
                    "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 6, "attn_logit_softcapping": 2.0},
    "gpt_oss": {**EXPERTS, "sliding_window": 6},
    "olmo3": {"sliding_window": 6},
    "deepseek_v3": LATENT,
}  # fmt: skip
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "qwen3_5_text": LINEAR,
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "nemotron_h": dict(
        mamba_num_heads=4,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=2,
        head_dim=8,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
    ),
}


def build(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    own = (IN_BATCHES | ONE_BY_ONE).get(family, {})
    config = AutoConfig.for_model(family, **{**SIZES, **own})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_for(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(2.0)  # or attention would hardly differ from a mean
    return model


async def conversations(engine: TorchEngine) -> list[tuple[list[int], list[tuple[int, Completion]]]]:
    """Six ragged sessions of two turns each: the tokens, and where each completion begins."""

    async def talk(number: int) -> tuple[list[int], list[tuple[int, Completion]]]:
        tokens, said = list(range(3, 8 + 3 * number)), []
        for turn in range(2):
            sampling = Sampling(temperature=0.7, max_tokens=8 + 3 * number, seed=10 * number + turn)
            completion = await engine.generate(tokens, sampling, f"s{number}")
            said.append((len(tokens), completion))
            tokens = [*tokens, *completion.token_ids, 5, 6, 7 + number]
        return tokens, said

    return list(await asyncio.gather(*map(talk, range(6))))


@pytest.mark.slow
@pytest.mark.parametrize("family", IN_BATCHES | ONE_BY_ONE)
async def test_log_probabilities_are_the_models_own(family: str) -> None:
    first, second = build(family), build(family, seed=1)
    engine = TorchEngine(copy.deepcopy(first), max_context=400)
    assert (engine.one_by_one is None) == (family in IN_BATCHES), engine.one_by_one
    for model in (first, second):
        if model is second:
            await engine.update(second, 1)
        for tokens, said in await conversations(engine):
            expected = plain_logprobs(model, tokens, 0.7)
            for start, completion in said:
                got = torch.tensor(completion.logprobs)
                assert_close(got, expected[start - 1 : start - 1 + len(got)], atol=2e-5, rtol=0)
    await engine.close()


@pytest.mark.parametrize("family", ["gemma3_text", "deepseek_v3", "qwen3_5_text"])
async def test_scores_are_the_models_own(family: str) -> None:
    model = build(family)
    engine = TorchEngine(copy.deepcopy(model), max_context=400)
    prefix = list(range(3, 23))
    branches, starts = [[30, 31, 32], [40], [], [50, 51]], [20, 9, 5, 20]
    found = await engine.score(prefix, branches, starts)
    for branch, start, scores in zip(branches, starts, found, strict=True):
        expected = plain_logprobs(model, [*prefix[:start], *branch])[start - 1 :]
        assert_close(torch.tensor(scores), expected[: len(branch)], atol=2e-5, rtol=0)
    await engine.close()


async def test_a_turn_of_a_hybrid_forwards_what_is_new_only() -> None:
    engine = TorchEngine(build("qwen3_5_text"), max_context=400)
    prompt = list(range(3, 60))
    said = await engine.generate(prompt, Sampling(max_tokens=5, seed=0), "s")
    before = engine.stats["forwarded_tokens"]
    await engine.generate([*prompt, *said.token_ids, 7, 8], Sampling(max_tokens=1, seed=0), "s")
    assert engine.stats["forwarded_tokens"] - before <= 4
    await engine.generate([*prompt[:-1], 9], Sampling(max_tokens=1, seed=0), "s")  # another beginning: from the start
    assert engine.stats["forwarded_tokens"] - before >= len(prompt)
    await engine.close()


def test_a_model_that_cannot_go_on_from_its_cache_is_refused() -> None:
    """Mamba's cache takes one token at a time: a second turn's prompt would be read wrongly."""
    with pytest.raises(EngineError, match=r"MambaForCausalLM: logits with a cache differ(.|\n)*engine.use: vllm"):
        TorchEngine(build("mamba"))
