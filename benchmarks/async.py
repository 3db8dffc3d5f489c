"""Throughput and reward of asynchronous training: `python -m benchmarks.async [--seeds 3 --iterations 60]`.

The mazes of benchmarks/maze, with a tool whose answers take a heavy-tailed (lognormal) time, as those of tests and web
pages do. The same training with eta 0, 1, 2, 4, and synchronous with three remedies for the tail: groups with further
episodes, updates with further groups, and episodes that a time limit cuts and whose tokens are withheld. Runs one after
another, each a process of its own with one thread, all of a seed from the same warm start. Throughput counts from the
first rollout to the last update. The same command again with a greater `--seeds` or further `--arms` adds to what is
there (`--out`); the last line is JSON.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Benchmark, Report, Row
from benchmarks.learning import RECIPE, Run, spread
from benchmarks.trainings import TINY, run_training, steps_of

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
WINDOW = 6  # the reward is that of the last sixth of the updates: their learning rates are below 7 % of the peak


class Arm(Row):
    """Lists have a value for each seed; `staleness` the share of tokens by age in updates."""

    arm: str
    episodes_per_s: list[float]
    speed_up: float
    reward: list[float]
    trainer_waits: list[float]
    aborted: list[int]
    withheld: list[int]
    mixed_versions: list[float]
    staleness: dict[str, float]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Arm,
    kind="compare",
    beside="synchronous training, and its remedies for the long tail",
    smoke={
        "seeds": 1, "arms": ["0", "1"], "iterations": 2,
        "set": TINY,
    },
    minutes=8,
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--out", type=Path, default=Path("runs/async"))
    arms = ["0", "1", "2", "4", *TAIL]
    parser.add_argument("--arms", nargs="*", default=arms, help=f"values of train.max_staleness, {', '.join(TAIL)}")
    parser.add_argument("--median", type=float, default=0.04, help="seconds of a tool call")
    parser.add_argument("--sigma", type=float, default=1.25, help="of the logarithm of the seconds")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    report.say(f"a call of the tool takes {given.median * math.exp(given.sigma**2 / 2):.3f} s on average")
    report.plan(given.seeds * (steps_of(RECIPE, warming(0, given)) + len(given.arms) * (given.iterations + 1)))
    runs: dict[str, list[Run]] = {arm: [] for arm in given.arms}
    for seed in range(given.first, given.first + given.seeds):
        model = warm(seed, given, report)
        for arm in given.arms:
            runs[arm].append(train(arm, seed, model, given, report))
    rates = {arm: statistics.median(map(throughput, found)) for arm, found in runs.items()}
    base = given.arms[0]
    results = [result(arm, found, rates[arm] / rates[base]) for arm, found in runs.items()]
    Console(width=140).print(table(results))
    for found in results:
        report.row(found)
    for arm in given.arms[1:]:
        report.ratio("trained episodes/s", *((named(each), rates[each]) for each in (arm, base)))


def named(arm: str) -> str:
    return arm if arm in TAIL else f"eta {arm}"


def warm(seed: int, given: argparse.Namespace, report: Report) -> Path:
    """The model that the runs of a seed begin with: after the warm start and an update that changes next to nothing."""
    folder: Path = given.out / f"warm-{seed}"
    run_training(RECIPE, folder, warming(seed, given), report)
    return (folder / "checkpoints" / "it-00001").resolve()


def warming(seed: int, given: argparse.Namespace) -> list[str]:
    return [*_seeded(seed), *SMALL, *given.set, "train.iterations=1", "train.lr=1e-12"]


def train(arm: str, seed: int, model: Path, given: argparse.Namespace, report: Report) -> Run:
    """The training metrics of one run."""
    folder = given.out / f"{named(arm).replace(' ', '-')}-{seed}"
    special = TAIL.get(arm, (f"train.max_staleness={arm}",))
    tool = f"tools=[{{use: ./maze.py:Maze, median: {given.median}, sigma: {given.sigma}}}]"
    sets = [*_seeded(seed), *SMALL, *given.set, tool, f"train.iterations={given.iterations}", CORRECTED,
            *special, f"model={{path: {model}}}", "warm_start=null"]  # fmt: skip
    lines = run_training(RECIPE, folder, sets, report).of("train")
    report.say(f"{folder.name}: {throughput(lines):.1f} episodes/s")
    return lines


def _seeded(seed: int) -> list[str]:
    return [f"seed={seed}", f"tasks.args.seed={seed}"]


def throughput(lines: Run) -> float:
    """Trained episodes a second."""
    seconds = sum(line["rollout_s"] + line["train_s"] for line in lines)
    return float(sum(line["episodes"] for line in lines) / seconds)


def result(arm: str, runs: list[Run], speed_up: float) -> Arm:
    """What the seeds of one arm came to."""
    ages: Counter[str] = Counter()
    for run in runs:
        for line in run:
            ages.update({age: share / len(run) / len(runs) for age, share in line["staleness"].items()})
    last = max(1, len(runs[0]) // WINDOW)
    return Arm(
        arm=named(arm),
        episodes_per_s=[round(throughput(run), 2) for run in runs],
        speed_up=round(speed_up, 2),
        reward=[round(statistics.mean(line["reward"] for line in run[-last:]), 3) for run in runs],
        trainer_waits=[round(share(run, "rollout_s"), 2) for run in runs],
        aborted=[sum(line.get("aborted_episodes", 0) for line in run) for run in runs],
        withheld=[round(sum(line.get("masked", 0) for line in run)) for run in runs],
        mixed_versions=[round(statistics.mean(line["mixed_versions"] for line in run), 2) for run in runs],
        staleness={age: round(ages[age], 3) for age in sorted(ages, key=int)},
    )


def share(run: Run, part: str) -> float:
    """Of the time, the share of a part."""
    return float(sum(m[part] for m in run) / sum(m["rollout_s"] + m["train_s"] for m in run))


def table(results: list[Arm]) -> Table:
    """Median and range over seeds."""
    out = Table(
        "arm", "episodes/s", "speed-up", "reward at the end", "trainer waits", "aborted", "withheld",
        "rows of mixed versions", "tokens by staleness",
    )  # fmt: skip
    for found in results:
        ages = "  ".join(f"{age}: {part:.0%}" for age, part in found.staleness.items())
        columns: list[Sequence[float]] = [
            found.reward,
            found.trainer_waits,
            found.aborted,
            found.withheld,
            found.mixed_versions,
        ]
        out.add_row(found.arm, spread(found.episodes_per_s), f"{found.speed_up}", *map(spread, columns), ages)
    return out


if __name__ == "__main__":
    sys.exit(main())
