"""A recipe learns, on several seeds: `python -m benchmarks.recipe_learns RECIPE [--seeds 3] [--jobs 2] [--beside ARM]`.

Every run is a process of its own: loading the model, demonstrations, warm start, reinforcement and evaluations are all
in its seconds. The same command again goes on where it was stopped (and then its seconds are those of the last part).
Success is on the tasks of the recipe's `eval`. Writes curve.png; the last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.store.run_dir import RunDir
from benchmarks.curves import curves

Line = dict[str, Any]

BESIDE = {"grpo": ["credit={use: grpo}"], "rloo": ["credit={use: rloo}"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--threads", type=int, default=1, help="of the sampler and of the trainer")
    parser.add_argument("--beside", choices=[*BESIDE], help="trains with this credit, too")
    parser.add_argument("--out", type=Path, help="default: runs/NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    parser.add_argument("--seeded", action="append", default=[], metavar="KEY", help="a key that gets the seed, too")
    given = parser.parse_args()
    out = given.out or Path("runs") / given.recipe.strip("/").replace("/", "-").removesuffix(".yaml")
    arms = {"recipe": given.set} | ({given.beside: [*given.set, *BESIDE[given.beside]]} if given.beside else {})
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = list(
            pool.map(
                lambda job: train(given, *job, out / f"{job[0]}-{job[1]}", arms[job[0]]),
                itertools.product(arms, range(given.seeds)),
            )
        )
    Console(width=120).print(table(runs))
    draw(runs, out / "curve.png")
    results = [{name: value for name, value in run.items() if name != "metrics"} for run in runs]
    print(json.dumps({"recipe": given.recipe, "cores": os.cpu_count(), "jobs": given.jobs, "runs": results}))


def train(given: argparse.Namespace, credit: str, seed: int, out: Path, overrides: list[str]) -> Line:
    """One run: success before and after, seconds, peak memory in GiB, and the lines of its metrics."""
    seeded = [f"{key}={seed}" for key in ("seed", *given.seeded)]
    sets = [*seeded, f"engine.threads={given.threads}", *overrides]
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl.cli", "train", given.recipe, "--out", str(out)]
        + [part for text in sets for part in ("--set", text)],
        stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": str(given.threads)},
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)  # of this run alone, unlike getrusage
    if status:
        raise SystemExit(f"{credit}, seed {seed}: exit code {os.waitstatus_to_exitcode(status)}")
    with RunDir.read(out) as run:
        metrics: list[Line] = run.metrics()
    evaluations = [line for line in metrics if line["split"] == "eval"]
    return {
        "credit": credit,
        "seed": seed,
        "before": evaluations[0]["success"],
        "after": evaluations[-1]["success"],
        "episodes": evaluations[-1]["episodes"],
        "turns": evaluations[-1]["turns"],
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_gib": round(used.ru_maxrss / 2**20, 2),
        "metrics": metrics,
    }


def table(runs: list[Line]) -> Table:
    """A line for each run."""
    out = Table("credit", "seed", "held out, before", "held out, end", "turns at the end", "wall s", "CPU s", "GiB")
    for run in runs:
        shares = [f"{run[name]:.3f}" for name in ("before", "after")]
        numbers = [f"{run[name]:g}" for name in ("turns", "seconds", "cpu_seconds", "peak_gib")]
        out.add_row(run["credit"], str(run["seed"]), *shares, *numbers)
    return out


def draw(runs: list[Line], path: Path) -> None:
    """Success by iteration: lines in training, dots on the tasks of `eval`."""
    from matplotlib.ticker import MaxNLocator

    with curves(path, "iteration", "success", "lines: training; dots: held-out tasks") as axes:
        for run in runs:
            found = {
                split: [(line["iteration"], line["success"]) for line in run["metrics"] if line["split"] == split]
                for split in ("train", "eval")
            }
            dashes = "-" if run["credit"] == "recipe" else ":"
            label = f"{run['credit']}, seed {run['seed']}"
            (line,) = axes.plot(*zip(*found["train"], strict=True), dashes, label=label, linewidth=1.5, alpha=0.6)
            axes.plot(*zip(*found["eval"], strict=True), "o", color=line.get_color())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


if __name__ == "__main__":
    main()
