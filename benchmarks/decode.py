"""Decode rate of the torch engine: `python -m benchmarks.decode`.

Batches of rows that share a prompt of `--context` tokens are decoded for `--steps` steps, twice; the second round
counts. Random weights of the shapes of Qwen2.5 0.5B and 1.5B; without a GPU a tiny model (a smoke test). `gb_per_s` is
what a step must read, the weights and the stored keys and values, by its time: on a GPU, compare it with the memory's
bandwidth. `draw_ms` is the part of drawing tokens, by itself. Wall time. The last line is JSON.

`--baseline PATH` compares the decode step on a CPU with that of another checkout instead: a bf16 model of the shapes of
SmolLM2-135M, 32 rows, one thread, in processor time; a process for each, in turn (`benchmarks/decode_arm.py`). `ratio`
is that of the best rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.draw import draw
from agentrl.engines.embedded.request import Request
from agentrl.types.engine import Sampling
from benchmarks.random_models import SIZES, last_line, random_model


def round_of(batch: Batch, rows: int, context: int, steps: int) -> float:
    """Seconds of `steps` decode steps of `rows` new requests, which are dropped then."""
    prompt = [3 + k % 200 for k in range(context - 1)]
    requests = [
        Request(f"{row}", [*prompt, row % 500], Sampling(), steps + 4, row, lambda *_: None, keep=False)
        for row in range(rows)
    ]
    batch.waiting.extend(requests)
    batch.step()  # prefills, and decodes once
    began = time.perf_counter()
    for _ in range(steps):
        batch.step()
    took = time.perf_counter() - began
    assert len(batch.running) == rows
    for request in requests:
        request.cancelled = True
    batch.step()
    return took


def draw_ms(model: Any, rows: int, times: int = 50) -> float:
    """Milliseconds to draw a token for every row from the model's logits, plain sampling."""
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    logits = torch.randn((rows, model.config.vocab_size), device=device, dtype=dtype) * 3
    keys = torch.arange(rows, device=device)
    for repeat in range(2):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times if repeat else 3):
            tokens = draw(logits, keys).tokens
        tokens.cpu()
    return 1e3 * (time.perf_counter() - began) / times


def measure(model: Any, rows: int, context: int, steps: int) -> dict[str, Any]:
    batch = Batch(model, max_batch=rows, parked_bytes=0)
    first, second = (round_of(batch, rows, context, steps) for _ in range(2))
    weights = sum(p.nbytes for p in model.parameters())
    stored = batch.arena.save(0, 1).nbytes * rows * (context + steps / 2)
    return {
        "tokens_per_s": round(rows * steps / second, 1),
        "ms_per_step": round(1e3 * second / steps, 3),
        "draw_ms": round(draw_ms(model, rows), 3),
        "first_round_tokens_per_s": round(rows * steps / first, 1),
        "gb_per_s": round((weights + stored) / (second / steps) / 1e9, 1),
    }


def compare(baseline: Path, rounds: int) -> dict[str, Any]:
    """Processor milliseconds of the decode step here and there, by round, and the ratio of the best."""
    arm = Path(__file__).with_name("decode_arm.py")
    found: dict[str, list[float]] = {"here": [], "baseline": []}
    for _ in range(rounds):
        for name, tree in (("here", arm.parent.parent), ("baseline", baseline.resolve())):
            environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
            run = subprocess.run([sys.executable, arm], stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found[name].append(json.loads(run.stdout.splitlines()[-1])["ms"])
            print(name, found[name][-1], file=sys.stderr, flush=True)
    return {**found, "ratio": round(min(found["here"]) / min(found["baseline"]), 3)}


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["0.5b", "1.5b"] if gpu else ["tiny"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64, 256] if gpu else [1, 4])
    parser.add_argument("--context", type=int, default=1024 if gpu else 64)
    parser.add_argument("--steps", type=int, default=256 if gpu else 16)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16" if gpu else "float32")
    parser.add_argument("--baseline", type=Path, metavar="PATH", help="of another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=2, help="with --baseline: processes for each checkout")
    given = parser.parse_args()
    if given.baseline is not None:
        print(json.dumps(compare(given.baseline, given.rounds)))
        return
    results = []
    for size in given.models:
        model = random_model(size, getattr(torch, given.dtype), "cuda" if gpu else "cpu")
        for rows in given.batches:
            with torch.no_grad():
                found = measure(model, rows, given.context, given.steps)
            results.append({"model": size, "rows": rows, **found})
            print(results[-1], flush=True)
    del given.baseline, given.rounds
    print(last_line(given, results))


if __name__ == "__main__":
    main()
