"""The forward pass of the common families by our own operations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.cached_model import CachedModel, causal
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.engines.embedded.forward import prefill
from agentrl.engines.embedded.forward.plain_pass import PlainPass
from agentrl.engines.embedded.forward.prefill import Fill
from agentrl.engines.embedded.native import cached_model
from agentrl.types.engine import Sampling

from .conftest import VOCAB, make_model, plain_logprobs

KINDS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "llama yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                       "original_max_position_embeddings": 128}},
    "mistral": {"sliding_window": 6, "hidden_act": "gelu"},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
}  # fmt: skip


def build(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "initializer_range": 0.2, "pad_token_id": 0,
    }  # fmt: skip
    config = AutoConfig.for_model(kind.split()[0], **{**settings, **KINDS.get(kind, {}), **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases of zero and norms of one would hide that they are left out
                parameter.add_(0.3 * torch.randn(parameter.shape))
            assert "rotary" not in name
    return model


def logits(cached: CachedModel, ids: list[list[int]]) -> torch.Tensor:
    """[rows, new, vocab] of rows that begin."""
    slots = torch.arange(len(ids[0])).expand(len(ids), -1)
    cached.arena.reserve(len(ids), len(ids[0]))
    cached.arena.aim(0, slots, len(ids[0]))
    found = cached.forward(torch.tensor(ids), slots, causal(slots, len(ids[0])))
    return found.view(len(ids), len(ids[0]), -1)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_models_own(kind: str) -> None:
    model = build(kind)
    ids = torch.randint(VOCAB, (3, 200)).tolist()
    own = model(torch.tensor(ids)).logits
    cached = CachedModel(model)
    assert cached.predict is not None
    assert_close(logits(cached, ids), own, atol=2e-4, rtol=0)


@torch.no_grad()
def test_bf16_logits_are_as_near_to_the_exact_ones_as_the_models_own() -> None:
    model = build("llama", hidden_size=64, num_hidden_layers=8)
    ids = torch.randint(VOCAB, (8, 60)).tolist()
    exact = model(torch.tensor(ids)).logits
    half = model.bfloat16()
    own = (half(torch.tensor(ids)).logits - exact).abs().mean()
    assert (logits(CachedModel(half), ids) - exact).abs().mean() < 1.1 * own


@torch.no_grad()
@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
@pytest.mark.parametrize("bound", [64, prefill.FORWARD_TOKENS])
def test_predictions_are_those_behind_the_last_tokens(kind: str, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "FORWARD_TOKENS", bound)
    model = build(kind)
    rows = [torch.randint(VOCAB, (length,)).tolist() for length in (6, 11, 14, 30, 31, 43, 350)]
    cached = CachedModel(model)
    cached.arena.reserve(len(rows) + 2, 400)
    assert cached.predict is not None
    cached.fill([Fill(row, 0, ids[: 3 + row]) for row, ids in enumerate(rows, 2)])
    found = cached.predict([Fill(row, 3 + row, ids[3 + row :]) for row, ids in enumerate(rows, 2)])
    for ids, predicted in zip(rows, found, strict=True):
        assert_close(predicted, model(torch.tensor([ids])).logits[0, -1], atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("olmo2", {}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}}),
    ],
)
def test_other_families_and_rotations_keep_their_own_pass(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, **changes)
    assert PlainPass.of(model) is None
    arena, refusal = cached_model(model)
    assert refusal is None
    assert arena.predict is None


class Adapted(torch.nn.Linear):
    """A linear layer with an adapter that has not learned yet."""


@pytest.mark.parametrize("change", ["adapter", "hook", "forward", "parametrization"])
def test_a_model_whose_parts_were_replaced_keeps_its_own_pass(change: str) -> None:
    model = build("llama")
    gate = model.model.layers[1].mlp.gate_proj
    if change == "adapter":
        model.model.layers[1].mlp.gate_proj = Adapted(32, 48, bias=True)
    elif change == "hook":
        gate.register_forward_hook(lambda module, args, output: output * 2)
    elif change == "forward":
        gate.forward = lambda states: torch.nn.functional.linear(states, gate.weight, gate.bias) * 2
    else:
        torch.nn.utils.parametrizations.weight_norm(gate)
    assert PlainPass.of(model) is None


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("invariant", [False, True])
def test_updates_whole_and_in_part_reach_joint_products(kind: str, dtype: torch.dtype, invariant: bool) -> None:
    model, other, expected = (build(kind, tie_word_embeddings=True).to(dtype) for _ in range(3))
    for parameter in other.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    batch = Batch(model, max_batch=4, parked_bytes=0, invariant=invariant)
    new = other.state_dict()
    some = {name: weight for name, weight in new.items() if name.endswith(("1.self_attn.k_proj.weight", "k_proj.bias"))}
    for version, part in enumerate((some, new), 1):
        expected.load_state_dict(part, strict=False)
        batch.update(part, version, whole=False)
        prompt, branch = [1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12]
        scores = torch.tensor(batch.score(prompt, [branch], [len(prompt)])[0])
        exact = plain_logprobs(expected, prompt + branch)[len(prompt) - 1 :]
        assert_close(scores, exact, atol=1e-4 if dtype == torch.float32 else 0.5, rtol=0)
        again = torch.tensor(Batch(copy.deepcopy(expected), max_batch=4, parked_bytes=0, invariant=invariant).score(
            prompt, [branch], [len(prompt)])[0])  # fmt: skip
        assert torch.equal(scores, again)


async def test_a_pass_that_gives_other_logits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainPass, "_angles", lambda self, positions, dtype: [torch.ones(1, 1, 8)] * 2)
    engine = TorchEngine(make_model())
    assert engine.one_by_one is None
    completion = await engine.generate([1, 2, 3], Sampling(max_tokens=20, seed=1), "s")
    expected = plain_logprobs(make_model(), [1, 2, 3, *completion.token_ids])[2:]
    assert_close(torch.tensor(completion.logprobs), expected, atol=1e-5, rtol=0)
    await engine.close()


async def test_a_first_token_takes_no_step_of_its_own() -> None:
    engine = TorchEngine(make_model())
    first = await engine.generate([1, 2, 3], Sampling(max_tokens=1, seed=1), "s")
    assert engine.stats["steps"] == 0
    assert engine.stats["forwarded_tokens"] == 3
    more = await engine.generate([1, 2, 3], Sampling(max_tokens=3, seed=1), "t")
    assert engine.stats["steps"] == 2
    assert more.token_ids[:1] == first.token_ids
    await engine.close()
