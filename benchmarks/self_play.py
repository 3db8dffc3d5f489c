"""Self-play of a two-player game: `python -m benchmarks.self_play [--seeds 3] [--out DIR]`.

Trains recipes/self-play (Nim against earlier selves), one seed after another, and evaluates it against its first
checkpoint. The same command again goes on where it was stopped. Writes curve.png; the last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.types.paths import data_path
from benchmarks.curves import curves
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.trainings import Line, run_training, steps_of


class Won(Row):
    """The share of games that a training wins against its first checkpoint, by iteration."""

    seed: int
    won: dict[int, float]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Won,
    kind="curve",
    beside="its first checkpoint",
    smoke={
        "seeds": 1,
        "set": [
            "stages.0.sft.episodes=8", "stages.0.sft.steps=2", "train.iterations=2", "train.groups=2",
            "train.group_size=2", "train.minibatch=4", "eval.every=1", "eval.episodes=6",
        ],
    },
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/self-play"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    recipe = data_path("recipes", "self-play")
    report.plan(given.seeds * steps_of(recipe, given.set))
    runs = [
        run_training(recipe, given.out / f"seed-{seed}", [f"seed={seed}", *given.set], report).metrics
        for seed in range(given.seeds)
    ]
    won = [{line["iteration"]: line["success"] for line in run if line["split"] == "eval"} for run in runs]
    Console(width=120).print(table(won))
    draw(runs, given.out / "curve.png")
    for seed, shares in enumerate(won):
        report.row(Won(seed=seed, won=shares))


def table(won: list[dict[int, float]]) -> Table:
    """Games won against the first checkpoint, a line for each seed."""
    out = Table("seed", *(f"after {iteration}" for iteration in won[0]))
    for seed, run in enumerate(won):
        out.add_row(str(seed), *(f"{share:.3f}" for share in run.values()))
    return out


def draw(runs: list[list[Line]], path: Path) -> None:
    """Games won by iteration: thick against the first checkpoint, thin against the earlier selves of the training."""
    with curves(path, "iteration", "games won", "thick: first checkpoint; thin: last four") as axes:
        for seed, metrics in enumerate(runs):
            first, past = (
                [
                    (line["iteration"], line["success"])
                    for line in metrics
                    if line["split"] == split and "success" in line
                ]
                for split in ("eval", "train")
            )
            (line,) = axes.plot(*zip(*first, strict=True), "o-", label=f"seed {seed}", linewidth=2)
            axes.plot(*zip(*past, strict=True), color=line.get_color(), linewidth=0.8, alpha=0.4)
        axes.axhline(0.5, color="grey", linewidth=0.8, linestyle="dashed")


if __name__ == "__main__":
    sys.exit(main())
