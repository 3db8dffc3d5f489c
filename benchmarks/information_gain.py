"""Cost of scoring the gold answer before every turn: `python -m benchmarks.information_gain`.

A Llama of 12 million parameters plays one episode of 10 turns: 200 tokens of prompt, 40 sampled and 120 observed a
turn. Then its 10 answers are scored in one call (ours), and with one full prompt pass a turn, as one would do it
without an engine that shares prefixes. Beside both stands the episode's own generation. One thread. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.engines.embedded.engine import TorchEngine
from agentrl.types.engine import Sampling
from benchmarks.harness import Benchmark, Report, Row

PROMPT, SAMPLED, OBSERVED, ANSWER = 200, 40, 120, 16


class Part(Row):
    """Seconds and forwarded tokens of a part of the work."""

    part: str
    seconds: float
    tokens: int


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Part,
    kind="compare",
    beside="a full prompt pass for every turn",
    smoke={"turns": 2},
    minutes=2,
)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--turns", type=int, default=10)
    return BENCHMARK.run(parser, lambda given, report: asyncio.run(measure(given, report)))


async def measure(given: argparse.Namespace, report: Report) -> None:
    turns = given.turns
    report.plan(2 * turns + 1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8000, hidden_size=256, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=2, max_position_embeddings=4096,
        )
    )  # fmt: skip
    engine = TorchEngine(model)
    rng = np.random.default_rng(0)

    def tokens(n: int) -> list[int]:
        return [*map(int, rng.integers(0, 8000, n))]

    context, starts = tokens(PROMPT), []
    began, before = time.perf_counter(), engine.stats["forwarded_tokens"]
    for turn in range(turns):
        starts.append(len(context))
        context += (await engine.generate(context, Sampling(max_tokens=SAMPLED, seed=turn), "episode")).token_ids
        if turn < turns - 1:
            context += tokens(OBSERVED)
        report.done("generated turns")
    rolled, generated = time.perf_counter(), engine.stats["forwarded_tokens"]
    answer = tokens(ANSWER)
    together = await engine.score(context[: starts[-1]], [answer] * turns, starts)
    shared, scored = time.perf_counter(), engine.stats["forwarded_tokens"]
    report.done("scored in one call")
    engine.end_session("episode")
    apart = []
    for start in starts:
        apart.append((await engine.score(context[:start], [answer]))[0])
        report.done("scored, a pass a turn")
    alone = time.perf_counter()
    await engine.close()
    if (worst := float(np.abs(np.array(together) - np.array(apart)).max())) >= 1e-4:
        report.problem(f"scores differ by {worst:.2g}")
    parts = [
        Part(part="rollout", seconds=rolled - began, tokens=generated - before),
        Part(part="one call", seconds=shared - rolled, tokens=scored - generated),
        Part(part="a pass a turn", seconds=alone - shared, tokens=sum(starts) + turns * (ANSWER - 1)),
    ]
    for each in parts:
        print(f"{each.part:<20}{each.seconds:>8.3f} s{each.tokens:>8} tokens forwarded")
        report.row(each)
    played, once, full = ((each.part, each.seconds) for each in parts)
    report.ratio("seconds of scoring", once, full)
    report.ratio("seconds", once, played)


if __name__ == "__main__":
    sys.exit(main())
