from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from agentrl.training.model import attention
from agentrl.training.model.packing import Layout, pack
from agentrl.training.model.policy import Policy, choose_layout
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample

from .make import SIZES, VOCABULARY, llama, make_rows, padded_logprobs, qwen3, turn_rows


def packed_gradient(
    model, rows: list[TrainingSample], budget: int = 10**6, layout: Layout = "tree"
) -> tuple[list[np.ndarray], torch.Tensor]:
    """Log-probabilities, and the gradient of their advantage-weighted sum, over packs."""
    model.zero_grad()
    out = [np.zeros(len(row.token_ids), np.float32) for row in rows]
    for packed in pack(rows, budget, layout):
        logprob, _ = Policy(model)(packed)
        (logprob * torch.from_numpy(packed.gather([row.advantage for row in rows]))).sum().backward()
        packed.scatter(logprob.detach().numpy(), out)
    return out, gradient(model)


def gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def padded_gradient(model, rows: list[TrainingSample]) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    logprob = padded_logprobs(model, rows)
    (logprob * torch.from_numpy(np.concatenate([row.advantage[row.loss_mask] for row in rows]))).sum().backward()
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


@pytest.mark.parametrize("heads", [(4, 4), (9, 3)])
def test_plain_attention_is_at_least_as_exact_as_sdpa(heads):
    torch.manual_seed(0)
    query, key, value = ((1.5 * torch.randn(2, n, length, 32)).bfloat16().requires_grad_() for n, length in
                         zip((*heads, heads[1]), (30, 70, 70), strict=True))  # fmt: skip
    hidden = torch.arange(70) > torch.arange(40, 70)[:, None]
    mask = torch.zeros(2, 1, 30, 70).masked_fill_(hidden, -torch.inf)
    slope = torch.randn(2, heads[0], 30, 32)

    def results(attended, *inputs):
        return [attended, *torch.autograd.grad((attended.double() * slope).sum(), inputs)]

    doubles = [x.detach().double().requires_grad_() for x in (query, key, value)]
    exact = results(sdpa(*doubles, mask.double()), *doubles)
    errors = []
    for attended in (
        attention.plain_attention(query, key, value, mask, None),
        sdpa(query, key, value, mask.bfloat16()),
    ):
        found = results(attended, query, key, value)
        errors.append([(own - wanted).abs().mean().item() for own, wanted in zip(found, exact, strict=True)])
    assert all(own < 1.4 * theirs for own, theirs in zip(*errors, strict=True)), errors


def sdpa(query, key, value, mask):
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize("bound", [0, attention.PLAIN])
def test_bf16_gradients_on_a_cpu_are_near_the_exact_ones(bound, monkeypatch):
    monkeypatch.setattr(attention, "PLAIN", bound)
    model, rows = qwen3().eval(), make_rows(groups=2, size=4)
    exact = packed_gradient(model, rows)[1]
    model.zero_grad()
    for packed in pack(rows, 10**6):
        logprob, _ = Policy(model, precision="bfloat16")(packed)
        (logprob * torch.from_numpy(packed.gather([row.advantage for row in rows]))).sum().backward()
    assert (gradient(model) - exact).norm() < 0.03 * exact.norm()


def test_the_model_attends_by_itself_again_afterwards():
    model = llama()
    before = model.config._attn_implementation
    choose_layout(Policy(model), "tree")
    assert model.config._attn_implementation == before == "sdpa"


def test_models_without_attention_train_by_rows():
    torch.manual_seed(0)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(TrainError, match=r"MambaForCausalLM.*\n.*train.packing: rows"):
        choose_layout(Policy(mamba), "tree")
    policy = Policy(mamba)
    assert "pass a state from token to token" in choose_layout(policy, "auto")
    assert policy.layout == "rows"


def test_rows_and_tree_give_one_gradient():
    rows = make_rows()
    for model in (llama(), qwen3()):
        tree, padded = (packed_gradient(model, rows, layout=layout) for layout in ("tree", "rows"))
        assert np.abs(np.concatenate(tree[0]) - np.concatenate(padded[0])).max() < 1e-5
        assert (tree[1] - padded[1]).norm() < 1e-6 * tree[1].norm()


def test_rows_split_by_budget_count_their_padding():
    rows = make_rows()
    for packed in pack(rows, 60, "rows"):
        lengths = [segment.end - segment.start for segment in packed.segments]
        assert len(lengths) == 1 or max(lengths) * len(lengths) <= 60
        assert packed.layout == "rows"


def test_a_model_that_looks_aside_is_refused():
    """A model whose layers mix neighbouring tokens outside of attention gives other logits, and is found out."""
    model = llama()
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output + output.roll(1, dims=1))
    with pytest.raises(TrainError, match="packed and plain logits differ"):
        choose_layout(Policy(model), "tree")


def test_scores_that_the_model_caps_are_refused():
    """SDPA, which the check compares with, drops the cap without a word; the model's own attention does not."""
    torch.manual_seed(0)
    capped = Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=50.0, sliding_window=128)
    )
    with pytest.raises(TrainError, match=r"Gemma2Attention caps its attention scores \(softcap\)"):
        choose_layout(Policy(capped), "tree")
    capped.set_attn_implementation("eager")
    policy = Policy(capped)
    assert "caps its attention scores" in choose_layout(policy, "auto")
    assert policy.layout == "rows"
    capped.set_attn_implementation("sdpa")
    with pytest.raises(TrainError, match="SDPA drops"):
        choose_layout(Policy(capped), "auto")
    capped.config.attn_logit_softcapping = None
    for layer in capped.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    choose_layout(Policy(capped), "tree")


def test_attention_sinks_are_refused_by_name():
    config = GptOssConfig(**SIZES, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=128)
    with pytest.raises(TrainError, match=r"GptOssAttention has attention sinks \(s_aux\)"):
        choose_layout(Policy(GptOssForCausalLM(config)), "tree")


@pytest.mark.parametrize("window", [3, 16])
def test_a_window_shorter_than_a_row(window):
    torch.manual_seed(0)
    mistral = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)).eval()
    assert choose_layout(Policy(mistral), "auto") is None
    rows = make_rows()
    ours, theirs = packed_gradient(mistral, rows)[1], padded_gradient(mistral, turn_rows(rows))[1]
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()
    mistral.config.sliding_window = 128  # the window counts
    for layer in mistral.model.layers:
        layer.self_attn.sliding_window = 128
    wide = packed_gradient(mistral, rows)[1]
    assert (ours - wide).norm() > 1e-3 * wide.norm()


def test_some_layers_with_a_window_and_some_without():
    torch.manual_seed(0)
    config = Gemma3TextConfig(**SIZES, head_dim=8, query_pre_attn_scalar=8, sliding_window=8)
    config.layer_types = ["sliding_attention", "full_attention"]
    gemma = Gemma3ForCausalLM(config).eval()
    rows = make_rows()
    ours, theirs = packed_gradient(gemma, rows)[1], padded_gradient(gemma, turn_rows(rows))[1]
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()
