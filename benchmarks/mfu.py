"""Tokens a second and MFU of the trainer's gradient, tree against padded rows: `python -m benchmarks.mfu`.

Groups of 8 multi-turn episodes with a common prompt, each group a prefix tree of about `--tree` unique tokens. The
gradient of the clipped policy loss is computed from prefix trees, as `Trainer` does, and from a padded row an episode,
in bfloat16 over float32 weights. Random weights of the shapes of Qwen2.5 0.5B and 1.5B. Without a GPU a tiny model in
float32: a smoke test, whose MFU says nothing.

MFU: floating-point operations that the gradient of the unique tokens takes, by what the device could do in that time
(`--peak`, TFLOP/s; default 989, dense bfloat16 of an H100 or H200). Forward and backward pass take 6 a weight and token
(Kaplan et al. 2020, section 2.1) and 12 * layers * heads * head size a pair of query and key; the head counts where
predictions are made, embeddings and recomputation do not. Padding and shared tokens forwarded again are no work done:
both layouts are measured by the same operations. Wall time. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agentrl.training.model.packing import Pack, pack
from agentrl.training.model.policy import Policy, choose_layout
from agentrl.types.sample import TrainingSample
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.packing import GROUP, episodes, loss, padded
from benchmarks.random_models import SIZES, random_model


class Gradient(Row):
    """A gradient in one layout."""

    model: str
    layout: str
    ms: float
    forwarded: int
    forwarded_per_s: float
    episode_tokens_per_s: float
    mfu: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Gradient,
    kind="measure",
    beside="the device's peak, and padded rows",
    smoke={"models": ["tiny"], "tree": 256, "groups": 1, "turns": 2, "rounds": 1},
)


def operations(model: Any, packs: Sequence[Pack]) -> float:
    """Floating-point operations of the gradient (see above)."""
    config = model.config
    head = config.vocab_size * config.hidden_size
    body = sum(p.numel() for p in model.parameters()) - head
    tokens = sum(len(packed.token_ids) for packed in packs)
    predictions = sum(len(packed.logit_positions) for packed in packs)
    pairs = sum(int((packed.positions + 1).sum()) for packed in packs)  # a token sees its path, and itself
    attention = 12 * config.num_hidden_layers * config.hidden_size * pairs
    total: float = 6.0 * (body * tokens + head * predictions) + attention
    return total


def by_tree(policy: Policy, packs: Sequence[Pack], rows: Sequence[TrainingSample]) -> int:
    device = policy.model.device
    trained = sum(int(row.loss_mask.sum()) for row in rows)
    columns = [row.behaviour_logprob for row in rows], [row.advantage for row in rows]
    for packed in packs:
        logprob, _ = policy(packed)
        old, advantage = (torch.from_numpy(packed.gather(column)).to(device) for column in columns)
        loss(logprob, old, advantage, trained).backward()  # type: ignore[no-untyped-call]
    return sum(len(packed.token_ids) for packed in packs)


def timed(step: Callable[[], int], model: Any, rounds: int) -> tuple[float, int]:
    """The shortest of `rounds`, in seconds, after one that warms up; and the tokens that went through the model."""
    times, forwarded = [], 0
    for _ in range(rounds + 1):
        model.zero_grad()
        began = time.perf_counter()
        forwarded = step()
        next(model.parameters()).grad.sum().item()  # waits for the device
        times.append(time.perf_counter() - began)
    return min(times[1:]), forwarded


def measure(
    model: Any, rows: list[TrainingSample], tree: int, rounds: int, peak: float, precision: Any, batch: int = GROUP
) -> list[dict[str, Any]]:
    """Both layouts. `batch`: padded rows of a pass; packs of trees hold about as many tokens, at least one tree."""
    policy = Policy(model, precision=precision)
    choose_layout(policy, "tree")
    packs = pack(rows, max(tree, 2 * tree * batch // GROUP))
    work = operations(model, packs)

    def by_padded() -> int:
        with policy.autocast():
            return padded(model, rows, batch)

    found = []
    for layout, step in (("tree", lambda: by_tree(policy, packs, rows)), ("padded episodes", by_padded)):
        took, forwarded = timed(step, model, rounds)
        found.append(
            {
                "layout": layout,
                "ms": round(1e3 * took, 1),
                "forwarded": forwarded,
                "forwarded_per_s": round(forwarded / took),
                "episode_tokens_per_s": round(sum(len(row.token_ids) for row in rows) / took),
                "mfu": float(f"{work / took / peak / 1e12:.3g}"),
            }
        )
    return found


def main() -> int:
    gpu = torch.cuda.is_available()
    parser = BENCHMARK.parser()
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["0.5b", "1.5b"] if gpu else ["tiny"])
    parser.add_argument("--tree", type=int, default=8192 if gpu else 512)
    parser.add_argument("--groups", type=int, default=4 if gpu else 2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5 if gpu else 1)
    parser.add_argument("--peak", type=float, default=989.0)
    return BENCHMARK.run(parser, measure_all)


def measure_all(given: argparse.Namespace, report: Report) -> None:
    gpu = torch.cuda.is_available()
    precision = "bfloat16" if gpu else "float32"
    report.plan(len(given.models))
    # A prompt takes a quarter of the tree; half of each turn's tokens are sampled.
    each = given.tree * 3 // (4 * GROUP * given.turns * 2)
    for size in given.models:
        model = random_model(size, torch.float32, "cuda" if gpu else "cpu")
        rows = episodes(given.groups, given.turns, given.tree // 4, each, each, SIZES[size]["vocab_size"])
        layouts = measure(model, rows, given.tree, given.rounds, given.peak, precision)
        for found in layouts:
            print(size, found, flush=True)
            report.row(Gradient(model=size, **found))
        tree, other = ((found["layout"], found["ms"]) for found in layouts)
        report.ratio(f"ms of a gradient, {size}", tree, other)
        report.done(size)


if __name__ == "__main__":
    sys.exit(main())
