"""One arm of `python -m benchmarks.decode --baseline`: the decode step of whichever agentrl is on PYTHONPATH, since
ce09e3b.

A bf16 model of the shapes of SmolLM2-135M with random weights; the rows share a prompt; in a thread of its own, as in
the engine. The last line is JSON: processor milliseconds a step, all threads counted, of the best of four rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PLACES = {
    "Batch": ("agentrl.engines.embedded.batch:Batch", "agentrl.engines.batch:Batch"),
    "Request": (
        "agentrl.engines.embedded.request:DecodeRequest",
        "agentrl.engines.embedded.request:Request",
        "agentrl.engines.batch:Request",
    ),
    "Sampling": ("agentrl.types.engine:Sampling", "agentrl.engines.base:Sampling"),
}
"""Places that each class has had, the newest first."""


def found(name: str) -> Any:
    """The class, wherever the checkout has it."""
    for module, of in (place.split(":") for place in PLACES[name]):
        with suppress(ModuleNotFoundError, AttributeError):
            return getattr(import_module(module), of)
    raise ImportError(f"this checkout has no {name} at {' or '.join(PLACES[name])}")


Batch, Request, Sampling = map(found, PLACES)

SHAPES = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
          "num_key_value_heads": 3, "vocab_size": 49152}  # fmt: skip
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 512}  # fmt: skip

ROWS, CONTEXT, STEPS, ROUNDS = 32, 64, 16, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a smaller model, whose figure says nothing")
    shapes = TINY if parser.parse_args().tiny else SHAPES
    with ThreadPoolExecutor(1) as worker:
        print(json.dumps({"ms": round(worker.submit(measure, shapes).result(), 2)}))


@torch.no_grad()
def measure(shapes: dict[str, int]) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(**shapes, max_position_embeddings=2048, tie_word_embeddings=True)
    batch = Batch(LlamaForCausalLM(config).bfloat16().eval(), max_batch=ROWS, parked_bytes=0)
    return min(round_of(batch) for _ in range(ROUNDS))


def round_of(batch: Any) -> float:
    """Processor milliseconds a step of new requests, which are dropped then."""
    prompt = [3 + k % 200 for k in range(CONTEXT - 1)]
    requests = [
        Request(f"{row}", [*prompt, row % 500], Sampling(), STEPS + 4, row, lambda *_: None, keep=False)
        for row in range(ROWS)
    ]
    batch.waiting.extend(requests)
    batch.step()  # prefills, and decodes once
    began = time.process_time()
    for _ in range(STEPS):
        batch.step()
    took = time.process_time() - began
    assert len(batch.running) == ROWS
    for request in requests:
        request.cancelled = True
    batch.step()
    return 1e3 * took / STEPS


if __name__ == "__main__":
    main()
