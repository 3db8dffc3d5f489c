"""Tokens that rounding decides, and the cost of deciding otherwise: `python -m benchmarks.determinism`.

Random sequences are forwarded in batches of two shapes, and drawn from with the same noise. A flip is a draw whose
token differs. By inverting the distribution function (the reference; the engine does not draw so) there is a boundary
between any two tokens for rounding to cross; by Gumbel-max only a tie of the two best scores; with the recheck, close
draws are made again by the row alone; batch-invariant logits are the same bits. Random weights in the shape of the
quickstart's policy (`--model quickstart`) or of SmolLM2-135M (`--model 135m`), float32, on the CPU; entropies are set
by the temperature. Flips are counted per million tokens; `redrawn` are draws that were made again.

`cost` is the CPU time of decode steps of 32 rows, as a ratio to a step that draws by inversion and rechecks nothing;
and of a prefill of 32 rows, to the engine's default. The last line is JSON.

`--trainings 10` trains the quickstart so many times instead, at one seed, with a warm start of 60 steps (about 6 nats)
and random pauses in the tool, the sandbox and the reward, and lists the metrics in which two of them differ: none, or
exit 1. `--set engine.batch_invariant=false` shows what the recipe's setting buys.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from agentrl.engines.embedded import decode
from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.cached_model import CachedModel
from agentrl.engines.embedded.draw import Drawn, draw
from agentrl.engines.embedded.forward.prefill import Fill
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.engines.embedded.tiles import TiledModel
from agentrl.types.engine import Sampling
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.random_models import LLAMAS, llama
from benchmarks.trainings import HIGH_ENTROPY, TINY, Line, delayed_quickstart, differences, steps_of, train

ENTROPIES = (0.5, 2.0, 6.0)
ROWS = 32


class Flips(Row):
    """Draws after which two batch shapes differ, per million, for each way to draw."""

    model: str
    entropy: float
    draws: int
    per_million: dict[str, float]


class Cost(Row):
    """CPU milliseconds of a decode step and of a prefill, of each way to draw."""

    model: str
    way: str
    step_ms: float
    prefill_ms: float


class Trainings(Row):
    """Trainings of one seed, and the metrics in which two of them differ."""

    trainings: int
    iterations: int
    differing: list[str]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Flips | Cost | Trainings,
    kind="compare",
    beside="inversion of the distribution function",
    smoke={
        "sequences": 16, "draws": 64, "context": 16, "steps": 2, "trainings": 1, "iterations": 1,
        "set": [*TINY, "eval.episodes=4"],
    },
    runs=("--draws 100000",),
    minutes=3,
)  # fmt: skip


def invert(logits: Tensor, keys: Tensor, **_: Any) -> Drawn:
    """The reference: the first token whose cumulative probability exceeds a uniform number, in float64 sums.

    Takes what `draw` takes, but for temperature, top_p and greedy. Margins are those of no recheck.
    """
    mass = logits.float().softmax(-1)
    cumulative = mass.cumsum(-1, dtype=torch.float64)
    uniform = (keys >> 11 & (1 << 53) - 1).double()[:, None] * 2.0**-53
    tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).clamp_(max=logits.shape[1] - 1)
    logprobs = mass.gather(1, tokens)[:, 0].log()
    return Drawn(tokens[:, 0], logprobs, torch.full_like(logprobs, torch.inf))


def logits_of(model: CachedModel, sequences: list[list[int]], rows: int) -> Tensor:
    """[sequences, vocab]: what the last token of each predicts, so many rows side by side."""
    found = []
    for at in range(0, len(sequences), rows):
        some = sequences[at : at + rows]
        longest = max(map(len, some))
        model.arena.reserve(len(some) + 1, longest)
        model.fill([Fill(row, 0, ids[:-1]) for row, ids in enumerate(some)])
        for first in range(0, len(some), model.tile or len(some)):
            part = some[first : first + (model.tile or len(some))]
            ids, slots = (
                torch.tensor([[value] for value in values])
                for values in ([ids[-1] for ids in part], [len(ids) - 1 for ids in part])
            )
            found.append(model.decode(ids, slots, longest, first)[: len(part)].float().clone())
    return torch.cat(found)


def temperature_of(logits: Tensor, entropy: float) -> float:
    """At which the rows have so many nats of entropy on average."""
    low, high = 1e-3, 1e3
    for _ in range(50):
        middle = (low * high) ** 0.5
        logprobs = (logits / middle).log_softmax(-1)
        cooler = float(-(logprobs.exp() * logprobs).sum(-1).mean()) < entropy
        low, high = (middle, high) if cooler else (low, middle)
    return float(middle)


def flips(model: Any, count: int, draws: int, report: Report) -> Iterator[tuple[float, int, dict[str, float]]]:
    """For each entropy: how many draws, and flips per million for each way to draw."""
    vocabulary, rng = model.config.vocab_size, random.Random(0)
    lengths = sorted(rng.randint(20, 200) for _ in range(count))
    sequences = [[rng.randrange(vocabulary) for _ in range(length)] for length in lengths]
    plain = CachedModel(model)
    together, few, alone = (logits_of(plain, sequences, rows) for rows in (ROWS, 5, 1))
    model.config._attn_implementation = "sdpa"
    tiled = TiledModel(model)
    invariant = [logits_of(tiled, sequences, rows) for rows in (ROWS, 5)]
    model.config._attn_implementation = "sdpa"
    times = -(-draws // len(sequences))
    report.done("logits")
    for entropy in ENTROPIES:
        temperature = temperature_of(together, entropy)
        scales = torch.full((len(sequences),), temperature)
        flipped = dict.fromkeys(("inverse_cdf", "gumbel", "gumbel_recheck", "batch_invariant", "redrawn"), 0)
        generator = torch.Generator().manual_seed(0)
        for _ in range(times):
            keys = torch.randint(-(2**63), 2**63 - 1, (len(sequences),), generator=generator)
            a, b = (invert(logits / temperature, keys).tokens for logits in (together, few))
            flipped["inverse_cdf"] += int((a != b).sum())
            x, y, canonical = (draw(logits, keys, temperature=scales) for logits in (together, few, alone))
            flipped["gumbel"] += int((x.tokens != y.tokens).sum())
            x_final, y_final = (torch.where(d.margins < decode.CLOSE, canonical.tokens, d.tokens) for d in (x, y))
            flipped["gumbel_recheck"] += int((x_final != y_final).sum())
            flipped["redrawn"] += int((x.margins < decode.CLOSE).sum())
            s, t = (draw(logits, keys, temperature=scales) for logits in invariant)
            flipped["batch_invariant"] += int((s.tokens != t.tokens).sum() + (s.logprobs != t.logprobs).sum())
        total = times * len(sequences)
        yield entropy, total, {way: round(1e6 * n / total, 2) for way, n in flipped.items()}
        report.done(f"flips at {entropy:g} nats")


@contextmanager
def drawing(by: Callable[..., Drawn], close: float) -> Iterator[None]:
    """The engine draws by this function, and makes draws with a smaller margin again."""
    with mock.patch.multiple(decode, draw=by, CLOSE=close):
        yield


def step_ms(model: Any, context: int, steps: int, *, invariant: bool) -> tuple[float, float]:
    """CPU time, in ms, of the prefill of 32 rows and of a decode step."""
    model.config._attn_implementation = "sdpa"
    batch = Batch(model, max_batch=ROWS, parked_bytes=0, invariant=invariant)
    vocabulary, rng = model.config.vocab_size, random.Random(0)
    batch.waiting.extend(
        DecodeRequest(
            f"{row}", [rng.randrange(vocabulary) for _ in range(context)], Sampling(), steps + 4, row, lambda *_: None
        )
        for row in range(ROWS)
    )
    began = time.process_time()
    batch.step()
    filled = time.process_time()
    for _ in range(steps):
        batch.step()
    took = (time.process_time() - filled) / steps
    model.config._attn_implementation = "sdpa"
    return 1e3 * (filled - began - took), 1e3 * took


def costs(model: Any, context: int, steps: int, report: Report) -> dict[str, tuple[float, float]]:
    """CPU milliseconds of a prefill and of a step, for each way to draw: the least of three rounds."""
    ways: dict[str, tuple[Callable[..., Drawn], float, bool]] = {
        "inverse_cdf": (invert, 0.0, False),
        "gumbel": (draw, 0.0, False),
        "gumbel_recheck": (draw, decode.CLOSE, False),
        "batch_invariant": (draw, 0.0, True),
    }
    measured: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(3):  # in turns: the machine may be busy with something else for a while
        for way, (by, close, invariant) in ways.items():
            with drawing(by, close):
                measured[way].append(step_ms(model, context, steps, invariant=invariant))
        report.done("costs")
    return {way: (min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)) for way, pairs in measured.items()}


def trainings(given: argparse.Namespace, report: Report) -> Trainings:
    """The quickstart trained some times, and in what the trainings differ."""
    runs: list[list[Line]] = []
    sets = sets_of(given)
    with tempfile.TemporaryDirectory() as folder:
        recipe = delayed_quickstart(Path(folder, "delayed"), given.most_s)
        for number in range(given.trainings):
            runs.append(train(recipe, Path(folder, f"run{number}"), sets, report))
            last = runs[-1][-2]
            said = {name: last[name] for name in ("sampled_tokens", "entropy", "loss", "mismatch_max") if name in last}
            report.say(f"training {number + 1}: {said}")
    return Trainings(trainings=given.trainings, iterations=given.iterations, differing=differences(runs))


def sets_of(given: argparse.Namespace) -> list[str]:
    """Overrides of the trainings."""
    return [*HIGH_ENTROPY, f"train.iterations={given.iterations}", *given.set]


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--model", choices=list(LLAMAS), default="quickstart")
    parser.add_argument("--sequences", type=int, help="to draw after; default 256, and 32 of the large model")
    parser.add_argument("--draws", type=int, help="for each entropy; default 1,000,000, and 10,000 of the large model")
    parser.add_argument("--context", type=int, default=150, help="tokens of a row, where cost is measured")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--trainings", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--most-s", type=float, default=0.05, help="longest pause")
    parser.add_argument("--set", action="append", default=[], help="of the recipe of the trainings")
    return BENCHMARK.run(parser, either)


def either(given: argparse.Namespace, report: Report) -> None:
    """Compares trainings, or ways to draw; a smoke run does both."""
    draws = not given.trainings or given.smoke
    report.plan(given.trainings * steps_of("quickstart", sets_of(given)) + (1 + len(ENTROPIES) + 3) * draws)
    if given.trainings:
        found = trainings(given, report)
        report.row(found)
        for each in found.differing:
            report.problem(f"trainings differ: {each}")
    if draws:
        measure(given, report)


@torch.no_grad()
def measure(given: argparse.Namespace, report: Report) -> None:
    """Flips, and the cost, of the ways to draw."""
    torch.set_num_threads(1)
    small = given.model == "quickstart"
    sequences, draws = given.sequences or (256 if small else 32), given.draws or (1_000_000 if small else 10_000)
    model = llama(given.model)
    for entropy, total, per_million in flips(model, sequences, draws, report):
        report.row(Flips(model=given.model, entropy=entropy, draws=total, per_million=per_million))
        print(entropy, total, per_million, flush=True)
    found = costs(model, given.context, given.steps, report)
    for way, (prefill, step) in found.items():
        report.row(Cost(model=given.model, way=way, step_ms=round(step, 2), prefill_ms=round(prefill, 2)))
        if way != "inverse_cdf":
            report.ratio("CPU ms of a decode step", (way, step), ("inverse_cdf", found["inverse_cdf"][1]))
    prefills = [(way, found[way][0]) for way in ("batch_invariant", "gumbel_recheck")]
    report.ratio("CPU ms of a prefill", *prefills)


if __name__ == "__main__":
    sys.exit(main())
