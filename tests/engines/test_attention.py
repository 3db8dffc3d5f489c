"""Grouped attention: the model says what it said before, through the engine's cache and without it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.forward import attention
from agentrl.engines.embedded.forward.attention import NAME, fold, grouped_attention_forward, use_grouped_attention
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.types.engine import Sampling

from .conftest import VOCAB, make_model, plain_logprobs

HEADS = [(4, 4), (4, 2), (4, 1), (6, 3)]
"""Query and key heads: one to one, groups, one for all; and a number that is no power of two."""


def model_of(heads: int, kv_heads: int) -> Any:
    return make_model(num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=8 * heads)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_ragged_rows_through_prefill_and_decode_say_what_the_plain_model_says(heads: int, kv_heads: int) -> None:
    plain, batch = model_of(heads, kv_heads), Batch(model_of(heads, kv_heads), max_batch=8, parked_bytes=1 << 20)
    rng = random.Random(0)
    requests = [
        DecodeRequest("", [rng.randrange(VOCAB) for _ in range(length)], Sampling(), 80, length, lambda *_: None)
        for length in (1, 2, 7, 30, 31, 64, 100)
    ]
    batch.waiting.extend(requests)
    with torch.no_grad():
        while batch.waiting or batch.running:
            batch.step()  # 80 steps: past slot 128, the arena has grown
    for request in requests:
        assert len(request.logprobs) == 80
        expected = plain_logprobs(plain, request.token_ids)[-80:]
        assert_close(torch.tensor(request.logprobs), expected, atol=1e-5, rtol=0)


def test_decode_repeats_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("transformers' own attention was called")

    batch = Batch(model_of(4, 2), max_batch=8, parked_bytes=1 << 20)
    monkeypatch.setattr(attention, "sdpa_attention_forward", refuse)
    done: list[Any] = []
    batch.waiting.extend(DecodeRequest("", [k] * 9, Sampling(), 3, 0, lambda *got: done.append(got)) for k in range(3))
    with torch.no_grad():
        while batch.waiting or batch.running:
            batch.step()
        batch.score([1, 2, 3], [[4, 5], [6]], [3, 3])
    assert [error for _, error in done] == [None] * 3


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_function_equals_attention_with_repeated_keys(new: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, length, 8, generator=generator).to(dtype)
        for heads, length in ((6, new), (2, 11), (2, 11))
    )
    hidden = torch.rand(3, 1, new, 11, generator=generator) < 0.4
    hidden[..., 0] = False
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    scores = query.float() @ key.float().repeat_interleave(3, 1).transpose(2, 3) * 0.3 + mask
    expected = (scores.softmax(-1) @ value.float().repeat_interleave(3, 1)).transpose(1, 2)
    module = torch.nn.Module()
    got, _ = grouped_attention_forward(module, query, key, value, fold(mask.to(dtype), 3), scaling=0.3)
    assert_close(got.float(), expected, atol=1e-6 if dtype == torch.float32 else 0.03, rtol=0)


@pytest.mark.parametrize("in_cache", [0, attention.IN_CACHE])
def test_a_bf16_decode_step_is_as_close_with_and_without_sdpa(monkeypatch: pytest.MonkeyPatch, in_cache: int) -> None:
    monkeypatch.setattr(attention, "IN_CACHE", in_cache)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(5, heads, length, 64, generator=generator).bfloat16()
        for heads, length in ((9, 1), (3, 70), (3, 70))
    )
    mask = torch.zeros(5, 1, 1, 70)
    for row in range(5):
        mask[row, ..., 10 * (row + 1) :] = -torch.inf
    scores = query.float() @ key.float().repeat_interleave(3, 1).transpose(2, 3) / 8 + mask
    expected = (scores.softmax(-1) @ value.float().repeat_interleave(3, 1)).transpose(1, 2)
    got = attention.grouped_attention(query, key, value, mask.bfloat16(), None)
    assert_close(got.float(), expected, atol=0.016, rtol=0)


@torch.no_grad()
def test_who_calls_the_model_beside_the_engine_notices_nothing() -> None:
    own, shared = model_of(4, 2), model_of(4, 2)
    assert use_grouped_attention(shared) == use_grouped_attention(shared) == 2
    assert shared.config._attn_implementation == NAME
    ids = torch.arange(24).view(2, 12)
    padding = torch.ones_like(ids)
    padding[0, :5] = 0
    for mask in (None, padding):
        assert_close(shared(ids, attention_mask=mask).logits[:, 5:], own(ids, attention_mask=mask).logits[:, 5:])
        said = [m.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False) for m in (own, shared)]
        assert torch.equal(*said)


def test_models_that_ask_for_more_keep_their_attention() -> None:
    for model in (model_of(4, 4), make_model(attn_implementation="eager")):
        before = model.config._attn_implementation
        assert use_grouped_attention(model) == 1
        assert model.config._attn_implementation == before
