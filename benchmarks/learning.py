"""How fast each credit learns: `python -m benchmarks.learning [--seeds 5] [--jobs 2] [--out runs/learning]`.

One task (benchmarks/maze: the quickstart's mazes without a shell), one learner, several credits, several seeds. A run
has learned when the mean success of three iterations in a row reaches `--level`. Every run is a process of its own with
one thread; the same command again goes on where it was stopped. Writes curve.png; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.store.run_dir import RunDir
from benchmarks.curves import curves

RECIPE = Path(__file__).parent / "maze"
SHAPED = "rewards={reached: ./maze.py:reached, explored: {use: ./maze.py:explored, weight: 0.05}}"
METHODS: dict[str, list[str]] = {
    "GRPO": ["credit={use: grpo}"],
    "GRPO, discounted": ["credit={use: grpo, gamma: 0.95}"],
    "GiGPO": [],
    "turn GAE": ["credit={use: turn_gae, gamma: 0.95}", "train.critic={}"],
    "shaped, ungated": [SHAPED, "credit={use: grpo, score: total}"],
    "shaped, G-RA": [SHAPED, "gate=[{on: reached, at_least: 1}]", "credit={use: grpo, score: total}"],
    "IGPO": ["credit={use: igpo, gamma: 0.95}", "information_gain={answer: goal, lead: ''}"],
}
WINDOW = 3

Run = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--level", type=float, default=0.9, help="success rate that counts as learned")
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=[*METHODS], metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    given = parser.parse_args()
    jobs = [(method, seed) for seed in range(given.seeds) for method in given.methods]
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = dict(zip(jobs, pool.map(lambda job: train(*job, given.out, given.set), jobs), strict=True))
    by_method = {method: [runs[method, seed] for seed in range(given.seeds)] for method in given.methods}
    results = {method: result(found, given.level) for method, found in by_method.items()}
    Console(width=120).print(table(results, given.level))
    draw({m: r for m, r in by_method.items() if all(r)}, given.out / "curve.png")
    print(json.dumps({"level": given.level, "seeds": given.seeds, "methods": results}))


def train(method: str, seed: int, out: Path, overrides: list[str]) -> Run:
    """The training metrics of one run; empty if it failed, and then the reason is printed."""
    folder = out / f"{method.lower().replace(', ', '-').replace(' ', '-')}-{seed}"
    sets = [f"seed={seed}", f"tasks.args.seed={seed}", *METHODS[method], *overrides]
    done = subprocess.run(
        [sys.executable, "-m", "agentrl.cli", "train", str(RECIPE), "--out", str(folder)]
        + [part for text in sets for part in ("--set", text)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        print(f"{method}, seed {seed} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return []
    with RunDir.read(folder) as run:
        lines: Run = [line for line in run.metrics() if line["split"] == "train"]
    print(f"{method}, seed {seed}: success at the end {lines[-1]['success']:.2f}", file=sys.stderr)
    return lines


def learned(run: Run, level: float) -> int | None:
    """Index of the last of the first `WINDOW` iterations in a row whose mean success reaches `level`."""
    solved = [line["success"] for line in run]
    ends = range(WINDOW - 1, len(solved))
    return next((k for k in ends if statistics.mean(solved[k - WINDOW + 1 : k + 1]) >= level), None)


def result(runs: list[Run], level: float) -> dict[str, Any]:
    """What the seeds of one method came to. Episodes and seconds are those up to `learned`, of the runs that did."""
    reached = [(run, end) for run in runs if (end := learned(run, level)) is not None]
    return {
        "runs": len(runs),
        "failed": sum(not run for run in runs),
        "learned": len(reached),
        "episodes": [sum(line["episodes"] for line in run[: end + 1]) for run, end in reached],
        "seconds": [
            round(sum(line["rollout_s"] + line["train_s"] for line in run[: end + 1]), 1) for run, end in reached
        ],
        "final_success": [round(statistics.mean(line["success"] for line in run[-WINDOW:]), 3) for run in runs if run],
        "final_turns": [round(statistics.mean(line["turns"] for line in run[-WINDOW:]), 2) for run in runs if run],
    }


def table(results: dict[str, dict[str, Any]], level: float) -> Table:
    """Median and range over seeds."""
    out = Table("credit", f"learned ({level:g})", "episodes", "seconds", "success at the end", "turns at the end")
    for method, found in results.items():
        learned_by = f"{found['learned']} of {found['runs']}" + (
            f", {found['failed']} failed" if found["failed"] else ""
        )
        columns = [spread(found[key]) for key in ("episodes", "seconds", "final_success", "final_turns")]
        out.add_row(method, learned_by, *columns)
    return out


def spread(values: list[float]) -> str:
    """Median (least to most)."""
    if not values:
        return "-"
    return f"{statistics.median(values):g} ({min(values):g} to {max(values):g})"


def draw(runs: dict[str, list[Run]], path: Path) -> None:
    """Mean success over seeds by episodes, with the range."""
    with curves(path, "episodes", "success (mean and range over seeds)") as axes:
        for method, found in runs.items():
            length = min(map(len, found))
            solved = [[line["success"] for line in run[:length]] for run in found]
            episodes = [sum(line["episodes"] for line in found[0][: k + 1]) for k in range(length)]
            columns = list(zip(*solved, strict=True))
            (line,) = axes.plot(episodes, [statistics.mean(column) for column in columns], label=method)
            axes.fill_between(episodes, [*map(min, columns)], [*map(max, columns)], color=line.get_color(), alpha=0.12)


if __name__ == "__main__":
    main()
