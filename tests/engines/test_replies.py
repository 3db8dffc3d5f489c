"""Replies of vLLM servers, as completions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.replies import CompletionsResponse, NativeResponse, from_completions, joined
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.types.engine import Completion, Sampling

from .fake_vllm import BYTES, FakeVLLM
from .http_server import serving

TIMES = {"queue_time_ms": 250.0, "time_to_first_token_ms": 500.0, "generation_time_ms": 1500.0, "mean_itl_ms": 3.0}


def completion(metrics: dict[str, Any]) -> Completion:
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
    reply = msgspec.convert({"choices": [choice], "metrics": metrics}, CompletionsResponse)
    assert reply.metrics is not None
    return reply.metrics.onto(from_completions(reply.choices[0], 0))


def test_queue_and_computation_are_apart_and_what_is_not_said_is_none() -> None:
    found = completion(TIMES)
    assert (found.queue_s, found.decode_s) == (0.25, 2.0)
    found = completion({"queue_time_ms": 250.0, "generation_time_ms": 1500.0})
    assert (found.queue_s, found.decode_s) == (0.25, None)
    assert msgspec.convert({"choices": []}, NativeResponse).metrics is None


def test_pieces_of_a_completion_add_up() -> None:
    whole = joined(completion(TIMES), completion(TIMES))
    assert (whole.queue_s, whole.decode_s) == (0.5, 4.0)
    whole = joined(completion(TIMES), completion({}))
    assert (whole.queue_s, whole.decode_s) == (None, None)


@pytest.mark.parametrize("metrics", [TIMES, None])
async def test_a_server_that_reports_times_is_read(metrics: dict[str, float] | None) -> None:
    class Reporting(FakeVLLM):
        async def __call__(self, path: str, body: Any) -> Any:
            reply = await super().__call__(path, body)
            return {**reply, "metrics": metrics} if "choices" in reply else reply

    async with serving(Reporting()) as url:
        engine = VLLMEngine(VLLMSettings(urls=[url]), [url], tokenizer=BYTES)
        try:
            await engine.start()
            found = await engine.generate([1, 2], Sampling(max_tokens=1), "s")
        finally:
            await engine.close()
    assert (found.queue_s, found.decode_s) == ((0.25, 2.0) if metrics else (None, None))
