"""Self-play of a two-player game: `python -m benchmarks.self_play [--seeds 3] [--out DIR]`.

Trains recipes/self-play (Nim against earlier selves), one seed after another, and evaluates it against its first
checkpoint. The same command again goes on where it was stopped. Writes curve.png; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.types.paths import data_path
from benchmarks.curves import curves
from benchmarks.trainings import train

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/self-play"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    given = parser.parse_args()
    recipe = data_path("recipes", "self-play")
    runs = [
        train(recipe, given.out / f"seed-{seed}", [f"seed={seed}", *given.set]) for seed in range(given.seeds)
    ]  # fmt: skip
    won = [{line["iteration"]: line["success"] for line in run if line["split"] == "eval"} for run in runs]
    Console(width=120).print(table(won))
    draw(runs, given.out / "curve.png")
    print(json.dumps({"won_against_first": won}))


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
    main()
