"""Decode rate of the torch engine: `python -m benchmarks.decode [--baseline COMMIT]`.

Batches of rows that share a prompt of `--context` tokens are decoded for `--steps` steps, twice; the second round
counts. Random weights of the shapes of Qwen2.5 0.5B and 1.5B; without a GPU a tiny model (a smoke test). `gb_per_s` is
what a step must read, the weights and the stored keys and values, by its time: on a GPU, compare it with the memory's
bandwidth. `draw_ms` is the part of drawing tokens, by itself. Wall time. The last line is JSON.

`--baseline` compares the decode step on a CPU with that of another commit or checkout instead: a bf16 model of the
shapes of SmolLM2-135M, 32 rows, one thread, in processor time; a process for each, in turn
(`benchmarks/peers/decode_arm.py`). The ratio is that of the best rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.draw import draw
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.types.engine import Sampling
from benchmarks.harness import ROOT, Benchmark, Missing, Report, Row
from benchmarks.random_models import SIZES, random_model


class Rate(Row):
    """The decode rate of a model with so many rows."""

    model: str
    rows: int
    context: int
    dtype: str
    tokens_per_s: float
    ms_per_step: float
    draw_ms: float
    first_round_tokens_per_s: float
    gb_per_s: float


class Step(Row):
    """Processor milliseconds of a decode step, by round."""

    checkout: str
    cpu_ms: list[float]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Rate | Step,
    kind="compare",
    beside="an earlier commit",
    smoke={"models": ["tiny"], "batches": [1, 3], "context": 16, "steps": 4, "rounds": 1, "baseline": "."},
    runs=("--baseline {commit} --rounds 3",),
    minutes=4,
)


def round_of(batch: Batch, rows: int, context: int, steps: int) -> float:
    """Seconds of `steps` decode steps of `rows` new requests, which are dropped then."""
    prompt = [3 + k % 200 for k in range(context - 1)]
    requests = [
        DecodeRequest(f"{row}", [*prompt, row % 500], Sampling(), steps + 4, row, lambda *_: None, keep=False)
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


def compare(baseline: str, rounds: int, report: Report) -> None:
    """Processor milliseconds of the decode step here and there."""
    arm = ROOT / "benchmarks" / "peers" / "decode_arm.py"
    found: dict[str, list[float]] = {"here": [], baseline: []}
    with checkout(baseline) as there:
        for _ in range(rounds):
            for name, tree in zip(found, (ROOT, there), strict=True):
                environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
                argv = [sys.executable, "-P", str(arm), *["--tiny"] * report.smoke]
                run = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, env=environment)
                found[name].append(json.loads(run.stdout.splitlines()[-1])["ms"])
                report.done(f"{name}: {found[name][-1]} ms")
    for name, ms in found.items():
        report.row(Step(checkout=name, cpu_ms=ms))
    report.ratio("CPU ms of a decode step, best round", *((name, min(ms)) for name, ms in found.items()))


@contextmanager
def checkout(of: str) -> Iterator[Path]:
    """The folder `of`, or one with the package as it was at the commit `of`."""
    if Path(of).is_dir():
        yield Path(of).resolve()
        return
    packed = subprocess.run(["git", "archive", of, "agentrl"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise Missing(f"{of} is neither a folder nor a commit of this clone: {packed.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="agentrl-baseline-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder)


def main() -> int:
    gpu = torch.cuda.is_available()
    parser = BENCHMARK.parser()
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["0.5b", "1.5b"] if gpu else ["tiny"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64, 256] if gpu else [1, 4])
    parser.add_argument("--context", type=int, default=1024 if gpu else 64)
    parser.add_argument("--steps", type=int, default=256 if gpu else 16)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16" if gpu else "float32")
    parser.add_argument("--baseline", metavar="COMMIT", help="or the folder of another checkout")
    parser.add_argument("--rounds", type=int, default=2, help="with --baseline: processes for each checkout")
    return BENCHMARK.run(parser, either)


def either(given: argparse.Namespace, report: Report) -> None:
    """Compares with a baseline, or measures rates; a smoke run does both."""
    rates = given.baseline is None or given.smoke
    report.plan((2 * given.rounds if given.baseline else 0) + (len(given.models) * len(given.batches) if rates else 0))
    if given.baseline is not None:
        compare(given.baseline, given.rounds, report)
    for size in given.models if rates else ():
        model = random_model(size, getattr(torch, given.dtype), "cuda" if torch.cuda.is_available() else "cpu")
        for rows in given.batches:
            with torch.no_grad():
                found = measure(model, rows, given.context, given.steps)
            print({"model": size, "rows": rows, **found}, flush=True)
            report.row(Rate(model=size, rows=rows, context=given.context, dtype=given.dtype, **found))
            report.done(f"{size}, {rows} rows")


if __name__ == "__main__":
    sys.exit(main())
