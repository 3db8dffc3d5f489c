"""Success of a recipe on several seeds: `python -m benchmarks.recipe_learns RECIPE [--seeds 3] [--beside grpo]`.

Every run is a process of its own: loading the model, demonstrations, warm start, reinforcement and evaluations are all
in its seconds. The same command again goes on where it was stopped (and then its seconds are those of the last part).
Success is on the tasks of the recipe's `eval`. Writes curve.png; the last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.curves import curves
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.trainings import TINY, Line, run_training, steps_of

BESIDE = {"grpo": ["credit={use: grpo}"], "rloo": ["credit={use: rloo}"]}


class Learned(Row):
    """One training: success on the held-out tasks before and after, and what it cost."""

    recipe: str
    credit: str
    seed: int
    before: float
    after: float
    episodes: int
    turns: float
    seconds: float
    cpu_seconds: float
    peak_gib: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Learned,
    kind="curve",
    beside="the same recipe with GRPO or RLOO",
    smoke={
        "recipe": "quickstart", "seeds": 1,
        "set": [*TINY, "train.iterations=1", "eval.episodes=4"],
    },
    runs=(
        "babyai/learn.yaml --beside grpo", "lookup-llm", "math-python/learn.yaml --beside grpo", "miniwob/click.yaml",
        "picture-maze --seeded tasks.args.seed --seeded eval.tasks.args.seed", "search-qa/learn.yaml --beside grpo",
        "sql-chinook/learn.yaml --beside grpo", "tau2/learn.yaml --beside grpo",
        "textworld-express/learn.yaml --beside grpo",
    ),
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--threads", type=int, default=1, help="of the sampler and of the trainer")
    parser.add_argument("--beside", choices=[*BESIDE], help="trains with this credit, too")
    parser.add_argument("--out", type=Path, help="default: runs/NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    parser.add_argument("--seeded", action="append", default=[], metavar="KEY", help="a key that gets the seed, too")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    if given.recipe is None:
        raise SystemExit("name a recipe: `agentrl recipes` lists those that come with agentrl")
    out = given.out or Path("runs") / given.recipe.strip("/").replace("/", "-").removesuffix(".yaml")
    arms = {"recipe": given.set} | ({given.beside: [*given.set, *BESIDE[given.beside]]} if given.beside else {})
    report.plan(given.seeds * sum(steps_of(given.recipe, overrides) for overrides in arms.values()))
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = list(
            pool.map(
                lambda job: train(given, job[0], job[1], out / f"{job[0]}-{job[1]}", arms[job[0]], report),
                itertools.product(arms, range(given.seeds)),
            )
        )
    learned = [each for each, _ in runs]
    Console(width=120).print(table(learned))
    draw(runs, out / "curve.png")
    for each in learned:
        report.row(each)


def train(
    given: argparse.Namespace, credit: str, seed: int, out: Path, overrides: list[str], report: Report
) -> tuple[Learned, list[Line]]:
    """One run, and the lines of its metrics."""
    seeded = [f"{key}={seed}" for key in ("seed", *given.seeded)]
    sets = [*seeded, f"engine.threads={given.threads}", *overrides]
    trained = run_training(given.recipe, out, sets, report, threads=given.threads)
    evaluations = trained.of("eval")
    first, last = evaluations[0], evaluations[-1]
    learned = Learned(
        recipe=given.recipe,
        credit=credit,
        seed=seed,
        before=first["success"],
        after=last["success"],
        episodes=last["episodes"],
        turns=last["turns"],
        seconds=round(trained.seconds, 1),
        cpu_seconds=round(trained.cpu_seconds, 1),
        peak_gib=round(trained.peak_gib, 2),
    )
    return learned, trained.metrics


def table(runs: list[Learned]) -> Table:
    """A line for each run."""
    out = Table("credit", "seed", "held out, before", "held out, end", "turns at the end", "wall s", "CPU s", "GiB")
    for run in runs:
        shares = [f"{share:.3f}" for share in (run.before, run.after)]
        numbers = [f"{number:g}" for number in (run.turns, run.seconds, run.cpu_seconds, run.peak_gib)]
        out.add_row(run.credit, str(run.seed), *shares, *numbers)
    return out


def draw(runs: list[tuple[Learned, list[Line]]], path: Path) -> None:
    """Success by iteration: lines in training, dots on the tasks of `eval`."""
    from matplotlib.ticker import MaxNLocator

    with curves(path, "iteration", "success", "lines: training; dots: held-out tasks") as axes:
        for run, metrics in runs:
            found = {
                split: [(line["iteration"], line["success"]) for line in metrics if line["split"] == split]
                for split in ("train", "eval")
            }
            dashes = "-" if run.credit == "recipe" else ":"
            label = f"{run.credit}, seed {run.seed}"
            (line,) = axes.plot(*zip(*found["train"], strict=True), dashes, label=label, linewidth=1.5, alpha=0.6)
            axes.plot(*zip(*found["eval"], strict=True), "o", color=line.get_color())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


if __name__ == "__main__":
    sys.exit(main())
