"""SmolLM2-135M learns to look things up: `python -m benchmarks.lookup_llm [--seeds 3] [--threads 2] [--out DIR]`.

Trains recipes/lookup-llm, one seed after another, each a process of its own: loading the model, demonstrations, warm
start, reinforcement and evaluations are all in its seconds. The same command again goes on where it was stopped (and
then its seconds are those of the last part). Writes curve.png; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.store.run_dir import RunDir
from benchmarks.curves import curves

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the sampler and of the trainer")
    parser.add_argument("--out", type=Path, default=Path("runs/lookup-llm"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    given = parser.parse_args()
    runs = [train(seed, given.out / f"seed-{seed}", given.threads, given.set) for seed in range(given.seeds)]
    Console(width=120).print(table(runs))
    draw([run["metrics"] for run in runs], given.out / "curve.png")
    results = [{name: value for name, value in run.items() if name != "metrics"} for run in runs]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # of the largest run
    machine = {"cores": os.cpu_count(), "threads": given.threads, "peak_gib": round(peak, 2)}
    print(json.dumps({**machine, "seeds": results}))


def train(seed: int, out: Path, threads: int, overrides: list[str], recipe: str = "lookup-llm") -> Line:
    """One run: success on held-out tasks before and after, seconds, and the lines of its metrics."""
    sets = [f"seed={seed}", f"engine.threads={threads}", *overrides]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "agentrl.cli", "train", recipe, "--out", str(out)]
        + [part for text in sets for part in ("--set", text)],
        check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    with RunDir.read(out) as run:
        metrics: list[Line] = run.metrics()
    evaluations = [line for line in metrics if line["split"] == "eval"]
    return {
        "seed": seed,
        "before": evaluations[0]["success"],
        "after": evaluations[-1]["success"],
        "episodes": evaluations[-1]["episodes"],
        "turns": evaluations[-1]["turns"],
        "seconds": round(wall, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "metrics": metrics,
    }


def table(runs: list[Line]) -> Table:
    """A line for each seed."""
    out = Table("seed", "held out, warm start", "held out, end", "turns at the end", "wall s", "CPU s")
    for run in runs:
        shares = [f"{run[name]:.3f}" for name in ("before", "after")]
        numbers = [f"{run[name]:g}" for name in ("turns", "seconds", "cpu_seconds")]
        out.add_row(str(run["seed"]), *shares, *numbers)
    return out


def draw(runs: list[list[Line]], path: Path, title: str = "lines: training; dots: held-out names") -> None:
    """Success by iteration: lines in training, dots on held-out tasks."""
    from matplotlib.ticker import MaxNLocator

    with curves(path, "iteration", "success", title) as axes:
        for seed, metrics in enumerate(runs):
            found = {
                split: [(line["iteration"], line["success"]) for line in metrics if line["split"] == split]
                for split in ("train", "eval")
            }
            (line,) = axes.plot(*zip(*found["train"], strict=True), label=f"seed {seed}", linewidth=1.5, alpha=0.6)
            axes.plot(*zip(*found["eval"], strict=True), "o", color=line.get_color())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


if __name__ == "__main__":
    main()
