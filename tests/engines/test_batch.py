"""The batch of the embedded engine by itself."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from agentrl.engines import embedded as modules
from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.types.engine import Completion, Sampling
from benchmarks import decode as benchmark
from benchmarks.random_models import random_model

from .conftest import make_model, plain_logprobs


@torch.no_grad()
def test_weights_that_were_broken_leave_no_trace() -> None:
    batch = Batch(make_model(), max_batch=4, parked_bytes=1 << 20)
    good = {name: value.clone() for name, value in make_model().state_dict().items()}
    batch.score([1] * 40, [[2, 3]], [40])
    batch.update({name: torch.full_like(value, torch.nan) for name, value in good.items()}, 1)
    batch.score([1] * 40, [[2, 3]], [40])
    batch.update(good, 2)
    request = DecodeRequest("s", [1, 2], Sampling(), 20, 0, lambda *_: None)
    batch.waiting.append(request)
    while batch.waiting or batch.running:
        batch.step()
    expected = plain_logprobs(make_model(), request.token_ids)[-20:]
    assert_close(torch.tensor(request.logprobs), expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("invariant", [False, True])
def test_equal_prompts_of_a_wave_are_forwarded_once(invariant: bool) -> None:
    batch = Batch(make_model(), max_batch=16, parked_bytes=1 << 20, invariant=invariant)
    prompts = [[1] * 30 + [task] * (20 + task) for task in (2, 3) for _ in range(4)]
    requests = [DecodeRequest(f"{k}", list(p), Sampling(), 3, k, lambda *_: None) for k, p in enumerate(prompts)]
    batch.waiting.extend(requests)
    batch.step()
    # The 30 tokens that all share, the rest of each task, and a step of all.
    assert batch.forwarded_tokens == 30 + (20 + 2) + (20 + 3) + len(requests)
    while batch.running:
        batch.step()
    for request in requests:
        expected = plain_logprobs(make_model(), request.token_ids)[-3:]
        assert_close(torch.tensor(request.logprobs), expected, atol=1e-5, rtol=0)
    assert len({tuple(request.token_ids) for request in requests}) == len(requests)


@torch.no_grad()
def test_a_completion_says_how_long_it_waited_and_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    for module in (modules.batch, modules.request):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    given: dict[str, Completion] = {}
    batch = Batch(make_model(), max_batch=1, parked_bytes=1 << 20)
    for name in ("first", "second"):
        done = functools.partial(lambda name, completion, error: given.update({name: completion}), name)
        batch.waiting.append(DecodeRequest(name, [1, 2], Sampling(), 3, 0, done, asked=now))
    while batch.waiting or batch.running:
        batch.step()
        now += 1.0
        if now == 11.0:  # all in flight enters once more
            batch.update(make_model().state_dict(), 1)
    assert (given["first"].queue_s, given["second"].queue_s) == (0.0, given["first"].decode_s + 1.0)
    assert given["first"].decode_s == given["second"].decode_s > 0.0


@torch.no_grad()
def test_the_benchmark_measures() -> None:
    found = benchmark.measure(random_model("tiny", torch.float32, "cpu"), 3, 60, 12)
    assert min(found[name] for name in ("tokens_per_s", "ms_per_step", "draw_ms")) > 0
