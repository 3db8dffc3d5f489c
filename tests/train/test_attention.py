from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from agentrl.errors import TrainError
from agentrl.train import attention
from agentrl.train.packing import pack
from agentrl.train.policy import Policy, check_policy
from agentrl.train.row import Row

from .make import SIZES, llama, make_rows, padded_logprobs, qwen3, turn_rows


def packed_gradient(model, rows: list[Row], budget: int = 10**6) -> tuple[list[np.ndarray], torch.Tensor]:
    """Log-probabilities, and the gradient of their advantage-weighted sum, over packs."""
    model.zero_grad()
    out = [np.zeros(len(row.token_ids), np.float32) for row in rows]
    for packed in pack(rows, budget):
        logprob, _ = Policy(model)(packed)
        (logprob * torch.from_numpy(packed.take([row.advantages for row in rows]))).sum().backward()
        packed.put(logprob.detach().numpy(), out)
    return out, gradient(model)


def gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def padded_gradient(model, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    logprob = padded_logprobs(model, rows)
    (logprob * torch.from_numpy(np.concatenate([row.advantages[row.loss_mask] for row in rows]))).sum().backward()
    return logprob.detach(), gradient(model)


@pytest.mark.parametrize("make", [llama, qwen3])
@pytest.mark.parametrize("budget", [10**6, 100])
@pytest.mark.parametrize("call_cost", [0, attention.CALL_COST, 10**9])
def test_gradient_equals_one_padded_row_per_turn(make, budget, call_cost, monkeypatch):
    """Shared prompts, branches, several turns: whatever the packs, and whether segments are stacked or not."""
    monkeypatch.setattr(attention, "CALL_COST", call_cost)
    model, rows = make().eval(), make_rows(groups=2, size=4)
    ours, our_gradient = packed_gradient(model, rows, budget)
    theirs, their_gradient = padded_gradient(model, turn_rows(rows))
    ours_by_turn = np.concatenate(
        [values[s:e] for row, values in zip(rows, ours, strict=True) for _, s, e in row.turn_spans]
    )
    assert np.abs(ours_by_turn - theirs.numpy()).max() < 1e-5
    assert (our_gradient - their_gradient).norm() < 1e-6 * their_gradient.norm()


def test_gradient_is_exact_in_double_precision():
    model, rows = llama().double().eval(), make_rows(groups=2, size=3)
    ours, theirs = packed_gradient(model, rows)[1], padded_gradient(model, turn_rows(rows))[1]
    # The loss itself is taken in float32.
    assert (ours - theirs).norm() < 2e-7 * theirs.norm()


def test_multi_head_attention_and_a_single_long_row():
    model = llama(num_key_value_heads=4).eval()
    rows = make_rows(groups=1, size=1, turns=9)[:1]
    ours, theirs = packed_gradient(model, rows)[1], padded_gradient(model, turn_rows(rows))[1]
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()


def test_the_model_attends_by_itself_again_afterwards():
    model = llama()
    before = model.config._attn_implementation
    check_policy(Policy(model))
    assert model.config._attn_implementation == before == "sdpa"


def test_models_without_attention_are_refused():
    torch.manual_seed(0)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(TrainError, match="MambaForCausalLM"):
        check_policy(Policy(mamba))


def test_a_model_that_looks_aside_is_refused():
    """A model whose layers mix neighbouring tokens outside of attention gives other logits, and is found out."""
    model = llama()
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output + output.roll(1, dims=1))
    with pytest.raises(TrainError, match="packed and plain logits differ"):
        check_policy(Policy(model))


def test_scores_that_the_model_caps_are_refused():
    """SDPA, which the check compares with, drops the cap without a word; the model's own attention does not."""
    torch.manual_seed(0)
    capped = Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=50.0, sliding_window=128)
    )
    with pytest.raises(TrainError, match=r"Gemma2Attention caps its attention scores \(softcap\)"):
        check_policy(Policy(capped))
    capped.config.attn_logit_softcapping = None
    for layer in capped.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    check_policy(Policy(capped))


def test_attention_sinks_are_refused_by_name():
    config = GptOssConfig(**SIZES, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=128)
    with pytest.raises(TrainError, match=r"GptOssAttention has attention sinks \(s_aux\)"):
        check_policy(Policy(GptOssForCausalLM(config)))


def test_a_window_shorter_than_a_row_is_refused():
    torch.manual_seed(0)
    mistral = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16)).eval()
    check_policy(Policy(mistral))
    with pytest.raises(TrainError, match=r"does not fit the model's attention window of 16"):
        packed_gradient(mistral, make_rows())
