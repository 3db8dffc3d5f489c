"""What asynchronous training gains: `python -m benchmarks.async [--seeds 3] [--out runs/async]`.

The mazes of benchmarks/maze, with a tool whose answers take a heavy-tailed (lognormal) time, as those of tests and web
pages do. The same training with eta 0, 1, 2, 4, and synchronous with three remedies for the tail: groups with further
episodes, updates with further groups, and episodes that a time limit cuts and whose tokens are withheld. Runs one after
another, each a process of its own with one thread, all of a seed from the same warm start. Throughput counts from the
first rollout to the last update. The same command again with a greater `--seeds` or further `--arms` adds to what is
there; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.store.run_dir import RunDir
from benchmarks.learning import RECIPE, Run, spread

# So small that computing takes less than waiting for tools does. Rooms without walls between them, so that no maze is
# harder to explore than another, and each of the eight in every update: what differs between runs is the age of data.
# A reply is one call (sampling ends at its closing tag) and has room for two tokens: the discount counts turns.
SMALL = (
    "tasks.args.size=3", "tasks.args.extra_doors=4", "tasks.args.distance=3", "agent.max_turns=12",
    "sampling.max_tokens=2", "train.groups=8", "train.group_size=6", "train.lr=2.5e-4", "concurrency=512",
)  # fmt: skip
TAIL = {
    "over-provisioned": ("train.over_provision=2",),
    "further-groups": ("train.over_provision_groups=2",),
    "withheld": ("limits.episode_s=1", "train.timed_out=mask"),
}
"""Arms of synchronous training; the others are values of train.max_staleness."""
CORRECTED = "train.importance={high: 2}"
WINDOW = 10  # updates at the end, over which the reward is taken: their learning rates are below 7 % of the peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--out", type=Path, default=Path("runs/async"))
    arms = ["0", "1", "2", "4", *TAIL]
    parser.add_argument("--arms", nargs="*", default=arms, help=f"values of train.max_staleness, {', '.join(TAIL)}")
    parser.add_argument("--median", type=float, default=0.04, help="seconds of a tool call")
    parser.add_argument("--sigma", type=float, default=1.25, help="of the logarithm of the seconds")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    given = parser.parse_args()
    runs: dict[str, list[Run]] = {arm: [] for arm in given.arms}
    for seed in range(given.first, given.first + given.seeds):
        for arm in given.arms:
            runs[arm].append(train(arm, seed, given))
    results = {arm: result(found) for arm, found in runs.items()}
    for found in results.values():
        base = results.get("0", found)["episodes_per_s"]
        found["speed_up"] = round(statistics.median(found["episodes_per_s"]) / statistics.median(base), 2)
    Console(width=140).print(table(results))
    tool = {"median_s": given.median, "sigma": given.sigma, "mean_s": round(mean_latency(given), 4)}
    print(json.dumps({"tool": tool, "iterations": given.iterations, "arms": results}))


def mean_latency(given: argparse.Namespace) -> float:
    """Seconds; of a lognormal distribution."""
    return float(given.median * math.exp(given.sigma**2 / 2))


def warm(seed: int, given: argparse.Namespace) -> Path:
    """The model that the runs of a seed begin with: after the warm start and an update that changes next to nothing."""
    folder: Path = given.out / f"warm-{seed}"
    _agentrl_train(folder, [*_seeded(seed), *SMALL, "train.iterations=1", "train.lr=1e-12"])
    return (folder / "checkpoints" / "it-00001").resolve()


def train(arm: str, seed: int, given: argparse.Namespace) -> Run:
    """The training metrics of one run."""
    folder = given.out / f"{'' if arm in TAIL else 'eta-'}{arm}-{seed}"
    special = TAIL.get(arm, (f"train.max_staleness={arm}",))
    tool = f"tools=[{{use: ./maze.py:Maze, median: {given.median}, sigma: {given.sigma}}}]"
    sets = [*_seeded(seed), *SMALL, tool, f"train.iterations={given.iterations}", CORRECTED,
            *special, f"model={{path: {warm(seed, given)}}}", "warm_start=null",
            *given.set]  # fmt: skip
    _agentrl_train(folder, sets)
    with RunDir.read(folder) as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
    print(f"{folder.name}, seed {seed}: {throughput(lines):.1f} episodes/s", file=sys.stderr)
    return lines


def _seeded(seed: int) -> list[str]:
    return [f"seed={seed}", f"tasks.args.seed={seed}"]


def _agentrl_train(folder: Path, sets: list[str]) -> None:
    """Trains, unless that is done.

    Raises:
        RuntimeError: it failed.
    """
    if (folder / "run.json").exists():
        with RunDir.read(folder) as run:
            if run.info.get("finished"):
                return
    done = subprocess.run(
        [sys.executable, "-m", "agentrl.cli", "train", str(RECIPE), "--out", str(folder)]
        + [part for text in sets for part in ("--set", text)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{folder} failed:\n{done.stderr[-2000:]}")


def throughput(lines: Run) -> float:
    """Trained episodes a second."""
    seconds = sum(line["rollout_s"] + line["train_s"] for line in lines)
    return float(sum(line["episodes"] for line in lines) / seconds)


def result(runs: list[Run]) -> dict[str, Any]:
    """What the seeds of one arm came to."""
    ages: Counter[str] = Counter()
    for run in runs:
        for line in run:
            ages.update({age: share / len(run) / len(runs) for age, share in line["staleness"].items()})
    return {
        "episodes_per_s": [round(throughput(run), 2) for run in runs],
        "reward": [round(statistics.mean(line["reward"] for line in run[-WINDOW:]), 3) for run in runs],
        "trainer_waits": [round(share(run, "rollout_s"), 2) for run in runs],
        "aborted": [sum(line.get("aborted_episodes", 0) for line in run) for run in runs],
        "withheld": [round(sum(line.get("masked", 0) for line in run)) for run in runs],
        "mixed_versions": [round(statistics.mean(line["mixed_versions"] for line in run), 2) for run in runs],
        "staleness": {age: round(ages[age], 3) for age in sorted(ages, key=int)},
    }


def share(run: Run, part: str) -> float:
    """Of the time, the share of a part."""
    return float(sum(m[part] for m in run) / sum(m["rollout_s"] + m["train_s"] for m in run))


def table(results: dict[str, dict[str, Any]]) -> Table:
    """Median and range over seeds."""
    out = Table(
        "arm", "episodes/s", "speed-up", "reward at the end", "trainer waits", "aborted", "withheld",
        "rows of mixed versions", "tokens by staleness",
    )  # fmt: skip
    for arm, found in results.items():
        ages = "  ".join(f"{age}: {part:.0%}" for age, part in found["staleness"].items())
        columns = [spread(found[key]) for key in ("reward", "trainer_waits", "aborted", "withheld", "mixed_versions")]
        out.add_row(arm, spread(found["episodes_per_s"]), f"{found['speed_up']}", *columns, ages)
    return out


if __name__ == "__main__":
    main()
