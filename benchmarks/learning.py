"""Episodes until each credit has learned: `python -m benchmarks.learning [--seeds 5] [--jobs 2] [--out runs/learning]`.

One task (benchmarks/maze: the quickstart's mazes without a shell), one learner, several credits, several seeds. A run
has learned when the mean success of three iterations in a row reaches `--level`. Each method is also compared with
`--against`, seed by seed: both have the same tasks and the same stored warm start. Every run is a process of its own
with one thread; the same command again goes on where it was stopped. Writes curve.png; the last line is JSON.

`--record FILE` keeps the finished runs as JSON lines and does not repeat those that it holds, on whatever machine: a
table of a hundred runs is measured in parts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.curves import MANY, curves
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.pairs import Pairs, Record, compare
from benchmarks.pairs import table as pairs_table
from benchmarks.trainings import TINY, TrainingFailed, run_training, run_warm_start, steps_of, weights

RECIPE = Path(__file__).parent / "maze"
SHAPED = "rewards={reached: ./maze.py:reached, explored: {use: ./maze.py:explored, weight: 0.05}}"
GOLD = "information_gain={answer: goal, lead: ''}"
METHODS: dict[str, list[str]] = {
    "GRPO": ["credit={use: grpo}"],
    "GRPO, discounted": ["credit={use: grpo, gamma: 0.95}"],
    "GiGPO": [],
    "GAGPO": ["credit={use: gagpo}"],
    "GAGPO, decay 0.5": ["credit={use: gagpo, decay: 0.5}"],
    "RTMC": ["credit={use: rtmc, gamma: 0.95, std: population}"],
    "SALT": ["credit={use: salt}"],
    "TEMPO": ["credit={use: tempo}"],
    "HCAPO": [
        "hindsight={note: 'It ends like this: {outcome}', outcome_tokens: 48}",
        "credit={use: hcapo, gamma: 0.95}", "model.scratch.max_context=1024",
    ],
    "A2TGPO": ["credit={use: a2tgpo}", GOLD],
    "ScalingInter": ["credit={use: grpo}", "curriculum=[{scaling_inter: {max_turns: [16, 20, 24], every: 15}}]"],
    "turn GAE": ["credit={use: turn_gae, gamma: 0.95}", "train.critic={}"],
    "shaped, ungated": [SHAPED, "credit={use: grpo, score: total}"],
    "shaped, G-RA": [SHAPED, "gate=[{on: reached, at_least: 1}]", "credit={use: grpo, score: total}"],
    "IGPO": ["credit={use: igpo, gamma: 0.95}", GOLD],
}  # fmt: skip
WINDOW = 3
RECORDED = ("episodes", "success", "turns", "rollout_s", "train_s")
"""Metrics of an iteration that a record holds."""

Run = list[dict[str, Any]]


class Arm(NamedTuple):
    """A method with a seed, and the settings that this gives the recipe."""

    method: str
    seed: int
    sets: list[str]

    @property
    def folder(self) -> str:
        return f"{self.method.lower().replace(', ', '-').replace(' ', '-')}-{self.seed}"


def recorded(record: Record, arm: Arm) -> Run | None:
    """Returns the metrics of a recorded run with exactly these settings; None: there is none."""
    held = record.find(method=arm.method, set=arm.sets)
    if held is None:
        return None
    return [dict(zip(RECORDED, values, strict=True)) for values in zip(*map(held.get, RECORDED), strict=True)]


def note(record: Record, arm: Arm, run: Run) -> None:
    """Adds a finished run: a list for each metric."""
    metrics = {name: [round(line[name], 6) for line in run] for name in RECORDED}
    record.add(method=arm.method, seed=arm.seed, set=arm.sets, **metrics)


class Method(Row, tag=True):
    """Lists have a value for each run that did not fail; `episodes` and `seconds` for each that has learned."""

    method: str
    level: float
    runs: int
    failed: int
    learned: int
    episodes: list[int]
    seconds: list[float]
    final_success: list[float]
    final_turns: list[float]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Method | Pairs,
    kind="curve",
    beside="GRPO, and each credit with the others",
    smoke={
        "seeds": 1, "methods": ["turn GAE"],
        "set": [*TINY, "train.iterations=2"],
    },
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--level", type=float, default=0.9, help="success rate that counts as learned")
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=[*METHODS], metavar="NAME")
    parser.add_argument("--against", default="GiGPO", choices=[*METHODS], metavar="NAME")
    parser.add_argument("--record", type=Path, help="JSON lines of finished runs, which are not run again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    record = Record(given.record)
    arms = [
        Arm(method, seed, [*seeded(seed), *METHODS[method], *given.set])
        for seed in range(given.seeds)
        for method in given.methods
    ]
    starts = Starts(given.out, given.set)
    report.plan(sum(steps_of(RECIPE, [*arm.sets, *starts.none(arm)]) for arm in arms if recorded(record, arm) is None))
    with ThreadPoolExecutor(given.jobs) as pool:
        trained = pool.map(lambda arm: train(arm, given.out, starts, record, report), arms)
        runs = {(arm.method, arm.seed): run for arm, run in zip(arms, trained, strict=True)}
    by_method = {method: [runs[method, seed] for seed in range(given.seeds)] for method in given.methods}
    results = [result(method, found, given.level) for method, found in by_method.items()]
    Console(width=120).print(table(results, given.level))
    draw({m: r for m, r in by_method.items() if all(r)}, given.out / "curve.png")
    for found in results:
        report.row(found)
    others = [method for method in given.methods if method != given.against and given.against in by_method]
    pairs = [paired(method, given.against, by_method) for method in others]
    if pairs := [pair for pair in pairs if len(pair.differences) > 1]:
        Console(width=120).print(pairs_table(pairs))
    for pair in pairs:
        report.row(pair)


def seeded(seed: int) -> list[str]:
    return [f"seed={seed}", f"tasks.args.seed={seed}"]


class Starts:
    """The warm starts, each trained once, by the first run of its seed. A method that changes the model has its own."""

    def __init__(self, out: Path, sets: Sequence[str]) -> None:
        self._out, self._sets = out, sets
        self._made: dict[int, Path] = {}
        self._making = threading.Lock()

    def none(self, arm: Arm) -> list[str]:
        """Returns the override of a run that trains no warm start."""
        return [] if any(each.startswith("model") for each in arm.sets) else ["warm_start=null"]

    def of(self, arm: Arm) -> list[str]:
        """Returns the overrides with which a run begins from the warm start of its seed."""
        if not self.none(arm):
            return []
        with self._making:
            if arm.seed not in self._made:
                folder = self._out / f"warm-{arm.seed}"
                self._made[arm.seed] = run_warm_start(RECIPE, folder, [*seeded(arm.seed), *self._sets])
        return weights(self._made[arm.seed])


def train(arm: Arm, out: Path, starts: Starts, record: Record, report: Report) -> Run:
    """The training metrics of one run; empty if it failed, which is reported as a problem."""
    if (held := recorded(record, arm)) is not None:
        return held
    try:
        lines = run_training(RECIPE, out / arm.folder, [*arm.sets, *starts.of(arm)], report).of("train")
    except TrainingFailed as error:
        report.problem(f"{arm.method}, seed {arm.seed} failed: {error}")
        return []
    report.say(f"{arm.method}, seed {arm.seed}: success at the end {lines[-1]['success']:.2f}")
    note(record, arm, lines)
    return lines


def learned(run: Run, level: float) -> int | None:
    """Index of the last of the first `WINDOW` iterations in a row whose mean success reaches `level`."""
    solved = [line["success"] for line in run]
    ends = range(WINDOW - 1, len(solved))
    return next((k for k in ends if statistics.mean(solved[k - WINDOW + 1 : k + 1]) >= level), None)


def result(method: str, runs: list[Run], level: float) -> Method:
    """What the seeds of one method came to. Episodes and seconds are those up to `learned`, of the runs that did."""
    reached = [run[: end + 1] for run in runs if (end := learned(run, level)) is not None]
    return Method(
        method=method,
        level=level,
        runs=len(runs),
        failed=sum(not run for run in runs),
        learned=len(reached),
        episodes=[sum(line["episodes"] for line in part) for part in reached],
        seconds=[round(sum(line["rollout_s"] + line["train_s"] for line in part), 1) for part in reached],
        final_success=[round(statistics.mean(line["success"] for line in run[-WINDOW:]), 3) for run in runs if run],
        final_turns=[round(statistics.mean(line["turns"] for line in run[-WINDOW:]), 2) for run in runs if run],
    )


def paired(method: str, against: str, runs: dict[str, list[Run]]) -> Pairs:
    """Compares the runs of two methods seed by seed. The value of a run is its mean success over all iterations."""
    both = zip(runs[method], runs[against], strict=True)
    return compare(method, against, [(value(one), value(other)) for one, other in both if one and other])


def value(run: Run) -> float:
    return float(statistics.mean(line["success"] for line in run))


def table(results: list[Method], level: float) -> Table:
    """Median and range over seeds."""
    out = Table("credit", f"learned ({level:g})", "episodes", "seconds", "success at the end", "turns at the end")
    for found in results:
        learned_by = f"{found.learned} of {found.runs}" + (f", {found.failed} failed" if found.failed else "")
        columns: list[Sequence[float]] = [found.episodes, found.seconds, found.final_success, found.final_turns]
        out.add_row(found.method, learned_by, *map(spread, columns))
    return out


def spread(values: Sequence[float]) -> str:
    """Median (least to most)."""
    if not values:
        return "-"
    return f"{statistics.median(values):g} ({min(values):g} to {max(values):g})"


def draw(runs: dict[str, list[Run]], path: Path) -> None:
    """Mean success over seeds by episodes, of a few methods with the range; the best one first in the legend."""
    many = len(runs) > MANY
    order = sorted(runs, key=lambda method: -statistics.mean(map(value, runs[method])))
    label = "success (mean over seeds)" if many else "success (mean and range over seeds)"
    with curves(path, "episodes", label) as axes:
        for number, method in enumerate(order):
            found = runs[method]
            length = min(map(len, found))
            solved = [[line["success"] for line in run[:length]] for run in found]
            episodes = [sum(line["episodes"] for line in found[0][: k + 1]) for k in range(length)]
            columns = list(zip(*solved, strict=True))
            means = [statistics.mean(column) for column in columns]
            dashes = "-" if number < 10 else "--"  # there are ten colours
            (line,) = axes.plot(episodes, means, dashes, label=method)
            if not many:
                extremes = [*map(min, columns)], [*map(max, columns)]
                axes.fill_between(episodes, *extremes, color=line.get_color(), alpha=0.12)


if __name__ == "__main__":
    sys.exit(main())
