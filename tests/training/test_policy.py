"""What changes how an update is computed (chunks, checkpointing, bf16) and what trains (LoRA, top layers)."""

from __future__ import annotations

import copy
import functools
import inspect

import numpy as np
import pytest
import torch
import torch.nn.attention.varlen
from torch.nn import functional
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM

from agentrl.config.train import TrainSettings
from agentrl.training import checkpoint
from agentrl.training.model.attention import Ragged, TreeAttention, tree_attention_forward
from agentrl.training.model.packing import pack
from agentrl.training.model.policy import Policy, choose_layout
from agentrl.training.trainer import Trainer
from agentrl.types.errors import TrainError

from .make import SIZES, llama, make_rows, padded_logprobs, qwen3, write_checkpoint


def gradient(model, rows, entropy="none", chunk: int | None = None, **settings) -> torch.Tensor:
    policy = Policy(copy.deepcopy(model), **settings)
    policy.chunk = chunk or policy.chunk
    for packed in pack(rows, 10**6):
        logprob, entropies = policy(packed, entropy)
        value = (logprob * torch.from_numpy(packed.gather([row.advantage for row in rows]))).sum()
        (value if entropies is None else value + entropies.sum()).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("entropy", ["none", "gradient"])
@pytest.mark.parametrize(
    "how", [{"chunk": 1}, {"chunk": 7}, {"checkpointing": True}, {"chunk": 5, "checkpointing": True}]
)
def test_chunks_and_checkpointing_change_no_gradient(how, entropy):
    model, rows = qwen3(), make_rows()
    whole, parts = gradient(model, rows, entropy), gradient(model, rows, entropy, **how)
    assert (whole - parts).norm() < 1e-6 * whole.norm()


def test_logits_take_no_more_than_they_may():
    """The largest tensor of a pass, forward and back: without chunks the logits of all predictions."""
    model, rows = llama(vocab_size=5000), make_rows(groups=2, size=8)
    (packed,) = pack(rows, 10**6)
    largest = {}
    for chunk in (None, 8):
        policy = Policy(model)
        policy.chunk = chunk or policy.chunk
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            policy(packed)[0].sum()
        largest[chunk] = max(sizes)
    assert largest[None] == len(packed.target_ids) * 5000
    assert largest[8] < 10 * 5000 < largest[None] / 10


def test_bfloat16_computes_in_it_and_keeps_float32_weights():
    model, rows = llama(), make_rows(groups=2, size=4)
    exact, rounded = gradient(model, rows), gradient(model, rows, precision="bfloat16")
    assert rounded.dtype == torch.float32
    assert functional.cosine_similarity(exact, rounded, dim=0) > 0.999
    assert not torch.equal(exact, rounded)
    trainer = Trainer(model, TrainSettings(precision="bfloat16", lr=1e-6, minibatch=100))
    before = trainer.weights()["model.norm.weight"].clone()
    trainer.update(rows, seed=0)
    moved = trainer.weights()["model.norm.weight"] - before
    # bfloat16 weights near 1 could not take a step of 1e-6.
    assert 0 < moved.abs().max() < 2e-6
    assert trainer.weights("bfloat16")["model.norm.weight"].dtype == torch.bfloat16


def test_a_float32_head_under_bfloat16_is_exact():
    """The product of the hidden states as they are: what bfloat16 rounds away moves probabilities by a percent."""
    model, rows = qwen3(), make_rows(groups=2, size=4)
    (packed,) = pack(rows, 10**6)
    errors = {}
    for exact in (False, True):
        policy = Policy(model, precision="bfloat16", exact_head=exact)
        with torch.no_grad(), policy.autocast():
            hidden = policy.hidden(packed)
            wanted = torch.log_softmax(hidden.double() @ model.lm_head.weight.double().T, -1)
            errors[exact] = (torch.log_softmax(policy.logits(hidden), -1) - wanted).abs().max().item()
    assert errors[True] < 1e-5
    assert errors[False] > 100 * errors[True]
    settings = TrainSettings(precision="bfloat16", head_precision="float32", minibatch=100, kl={"coef": 0.1})
    trainer = Trainer(copy.deepcopy(model), settings, reference=copy.deepcopy(model))
    assert trainer.policy.exact_head
    assert trainer.anchors["reference"].exact_head, "or KL would measure the rounding"
    assert all(
        np.array_equal(a, b)
        for a, b in zip(trainer.logprobs(rows), trainer.logprobs(rows, under="reference"), strict=True)
    )
    assert np.isfinite(trainer.update(rows, seed=0)["grad_norm"])


def test_logits_that_the_model_scales_are_scaled():
    torch.manual_seed(0)
    granite = GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)).eval()
    assert choose_layout(Policy(granite), "auto") is None
    rows = make_rows()
    ours = np.concatenate(
        [lp[row.loss_mask] for row, lp in zip(rows, Trainer(granite, TrainSettings()).logprobs(rows), strict=True)]
    )
    with torch.no_grad():
        assert np.abs(ours - padded_logprobs(granite, rows).numpy()).max() < 1e-5


def test_only_the_top_layers_train():
    model, rows = llama(num_hidden_layers=3), make_rows()
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(model, TrainSettings(lr=1e-2, trainable={"top_layers": 2}))
    trainer.update(rows, seed=0)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name.split(".")[1] + name.split(".")[2] for name in changed} == {"layers1", "layers2", "normweight"}
    with pytest.raises(TrainError, match="the model has 3 layers"):
        Trainer(model, TrainSettings(trainable={"top_layers": 4}))


def test_adapters_train_and_merge_into_the_model_s_own_names(tmp_path):
    plain, rows = llama(tie_word_embeddings=True), make_rows()
    start = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    settings = TrainSettings(lr=1e-2, lora={"rank": 4, "alpha": 8})
    trainer = Trainer(copy.deepcopy(plain), settings)
    assert all(torch.equal(tensor, start[name]) for name, tensor in trainer.weights().items())
    trainer.update(rows, seed=0)
    weights = trainer.weights()
    assert weights.keys() == start.keys()
    changed = {name.rsplit(".", 2)[1] for name in weights if not torch.equal(weights[name], start[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}

    folder = tmp_path / "it-00001"
    own = {"weights": weights, "adapters": trainer.adapters(), "lora": settings.lora}
    write_checkpoint(folder, trainer.model, None, trainer.state_dict(), {}, **own)
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(copy.deepcopy(plain), folder / "adapter").eval()
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        ours = trainer.model(input_ids=ids).logits
        assert (loaded(input_ids=ids).logits - ours).abs().max() < 1e-5
        assert (adapted(input_ids=ids).logits - ours).abs().max() < 1e-5
        assert (plain(input_ids=ids).logits - ours).abs().max() > 1e-2

    resumed = Trainer(copy.deepcopy(plain), settings)
    resumed.load_state_dict(checkpoint.load_state(folder).trainer)
    for each in (trainer, resumed):
        each.update(rows, seed=1)
    assert all(torch.equal(tensor, trainer.weights()[name]) for name, tensor in resumed.weights().items())


def test_adapters_of_layers_that_are_not_there_are_refused():
    with pytest.raises(TrainError, match=r"no linear layer 'qproj'(.|\n)*q_proj"):
        Trainer(llama(), TrainSettings(lora={"targets": ["qproj"]}))
    with pytest.raises(ValueError, match="both select what trains"):
        TrainSettings(lora={}, trainable={"top_layers": 1})


def varlen(query, key, value, query_ends, key_ends, most_queries, most_keys, *, scale, window_size, enable_gqa):
    """What torch.nn.attention.varlen.varlen_attn is documented to do; it runs on CUDA only."""
    assert window_size == (-1, 0)
    out = []
    for q0, q1, k0, k1 in zip(query_ends, query_ends[1:], key_ends, key_ends[1:], strict=False):
        assert q1 - q0 <= most_queries
        assert k1 - k0 <= most_keys
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril((k1 - k0) - (q1 - q0))
        q, k, v = (x.transpose(0, 1)[None] for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        attended = functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=enable_gqa)
        out.append(attended[0].transpose(0, 1))
    return torch.cat(out)


def varlen_of_torch_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    """Its heads are as many for keys as for queries."""
    assert query.shape[1] == key.shape[1] == value.shape[1]
    return varlen(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size, enable_gqa=False
    )


@pytest.mark.parametrize("kernel", [varlen, varlen_of_torch_2_11])
def test_the_kernel_for_variable_lengths_is_given_the_same_attention(monkeypatch, kernel):
    """With the kernel's documented meaning in plain torch: the indices that a GPU gets. The kernel is not run."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    (packed,) = pack(make_rows(), 10**6)
    torch.manual_seed(0)
    length = len(packed.token_ids)
    q, k, v = (torch.randn(1, heads, length, 8) for heads in (4, 2, 2))
    stacked = TreeAttention.of(packed, torch.device("cpu"), torch.float32)
    ragged = TreeAttention(
        [], torch.empty(0), stacked.longest, torch.float32, Ragged.of(packed, torch.device("cpu"), torch.float32)
    )
    module = torch.nn.Identity()
    ours, theirs = (tree_attention_forward(module, q, k, v, None, tree=tree)[0] for tree in (ragged, stacked))
    assert (ours - theirs).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_shared_keys_and_values_are_summed_exactly(monkeypatch, dtype):
    def kernel(query, key, value, *_, **__):
        assert key.dtype == value.dtype == torch.bfloat16
        return query + key.sum() + value.sum()

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    times = 600  # summed one by one in bfloat16, ones stop adding up at 256
    nobody = torch.zeros(1, dtype=torch.int32)
    ragged = Ragged(torch.zeros(times, dtype=torch.int64), nobody, nobody, 1, 1, torch.bfloat16)
    query, key, value = (torch.zeros(1, 1, 1, dtype=dtype, requires_grad=True) for _ in range(3))
    ragged.attend(query, key, value, scaling=None).sum().backward()
    assert (key.grad.item(), value.grad.item()) == (times, times)


def test_over_float32_weights_the_kernel_is_given_half_precision(monkeypatch):
    """The kernel takes nothing else, and autocast, which converts for SDPA, does not know it."""
    model, (packed,) = llama(), pack(make_rows(), 10**6)
    exact, _ = Policy(model, precision="bfloat16")(packed)
    calls = []

    @functools.wraps(varlen)
    def kernel(query, key, value, *args, **kwargs):
        calls.append({query.dtype, key.dtype, value.dtype})
        inspect.signature(real).bind(query, key, value, *args, **kwargs)
        return varlen(query, key, value, *args, **kwargs)

    def ragged(pack, device, dtype):
        return TreeAttention([], torch.empty(0), 10**6, dtype, Ragged.of(pack, device, dtype))

    real = torch.nn.attention.varlen.varlen_attn
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr(TreeAttention, "of", ragged)
    logprob, _ = Policy(model, precision="bfloat16")(packed)
    assert calls
    assert all(types == {torch.bfloat16} for types in calls)
    assert (logprob - exact).abs().max() < 0.05
