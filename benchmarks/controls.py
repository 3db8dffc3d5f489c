"""A published method beside its control, in pairs of seeds: `python -m benchmarks.controls METHOD [--seeds 8]`.

METHOD is a file of recipes/methods with sizes below. Both arms of a pair begin with the same stored warm start and have
the same tasks, optimiser and iterations; the control is the recipe with the method taken out. The checkpoints of both
are evaluated by the control's recipe on held-out tasks: without hints, guidance or further tries. The value of an arm
is its mean held-out success over the tokens that the policy sampled, up to the smaller total of the two, so that guided
and retried tokens count. `--first 100 --seeds 3` shows whether a task is admitted: the control starts between .02 and
.5 and ends below .9. `--record FILE` keeps finished pairs as JSON lines and does not repeat them. Writes curve.png; the
last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.curves import curves
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.pairs import Pairs, Record, compare
from benchmarks.pairs import table as pairs_table
from benchmarks.trainings import (
    TINY,
    TrainingFailed,
    run_evaluation,
    run_training,
    run_warm_start,
    steps_of,
    warming,
    weights,
)

ARMS = {"method": None, "control": "control"}
"""The profile of each arm."""
MANY = 1000
"""Checkpoints that are kept: all."""


@dataclass(frozen=True)
class Sizes:
    """Settings of both arms, chosen on seeds 100 to 102.

    Attributes:
        seeded: keys that get the seed, besides `seed`.
        evaluations: by name, settings of an evaluation; `{start}` is the folder of the warm start. The first one is
            that by which the arms are compared.
    """

    settings: Sequence[str]
    seeded: Sequence[str] = ()
    evaluations: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"held out": ()})


_SUMS = ("tasks.args.seed",)
METHODS = {
    "spa": Sizes(["train.iterations=24", "train.checkpoint_every=6"]),
    "agent-rlvr": Sizes(["train.iterations=16", "train.checkpoint_every=4"], _SUMS),
    "ufo": Sizes(["train.iterations=16", "train.checkpoint_every=4"], _SUMS),
    "mars": Sizes(
        [
            "model={scratch: {hidden: 48, layers: 2, heads: 2, vocab_size: 400, max_context: 1024}, device: cpu}",
            "warm_start={script: random, episodes: 300, steps: 300, batch: 16, lr: 2.0e-3}",
            "sampling.max_tokens=8", "agent.max_turns=24",
            "train.trainable=null", "train.lr=1.0e-3", "train.betas=[0.9, 0.99]", "train.kl=null",
            "train.iterations=24", "train.checkpoint_every=6",
        ],
        evaluations={
            "a script of random moves": ["agent.others=rival", "policies={rival: {script: random}}"],
            "the warm start": ["agent.others=rival", "policies={rival: {checkpoint: '{start}'}}"],
        },
    ),
}  # fmt: skip


class Arm(Row, tag=True):
    """One training.

    Attributes:
        tokens: that the policy sampled up to each checkpoint; the first is the warm start, at 0.
        success: of the same checkpoints, by evaluation.
        seconds: processor time of the training, without the warm start.
    """

    method: str
    arm: str
    seed: int
    tokens: list[int]
    success: dict[str, list[float]]
    seconds: float

    @property
    def compared(self) -> list[float]:
        """The success by which arms are compared."""
        return next(iter(self.success.values()))


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Arm | Pairs,
    kind="curve",
    beside="the recipe with the method taken out",
    smoke={
        "method": "agent-rlvr", "seeds": 1, "episodes": 4,
        "set": [*TINY, "train.iterations=1", "train.checkpoint_every=1"],
    },
    runs=tuple(METHODS),
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("method", nargs="?", choices=[*METHODS])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="pairs at once")
    parser.add_argument("--episodes", type=int, default=256, help="of each evaluation")
    parser.add_argument("--out", type=Path, default=Path("runs/controls"))
    parser.add_argument("--record", type=Path, help="JSON lines of finished trainings, which are not run again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the sizes")
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    if given.method is None:
        raise SystemExit(f"name a method: {', '.join(METHODS)}")
    record = Record(given.record)
    seeds = range(given.first, given.first + given.seeds)
    with ThreadPoolExecutor(given.jobs) as pool:
        pairs = list(pool.map(lambda seed: Pair(given, seed, record, report).run(), seeds))
    for arm in (arm for pair in pairs for arm in pair):
        report.row(arm)
    whole = [pair for pair in pairs if len(pair) == len(ARMS)]
    if whole:
        draw(whole, given.out / given.method / "curve.png")
    if len(whole) > 1:
        found = compare(given.method, "control", [values(*pair) for pair in whole])
        Console(width=140).print(pairs_table([found], "method"))
        report.row(found)


class Pair:
    """Both arms of a seed."""

    def __init__(self, given: argparse.Namespace, seed: int, record: Record, report: Report) -> None:
        self._given, self._seed, self._record, self._report = given, seed, record, report
        self._folder: Path = given.out / given.method / str(seed)
        sizes = METHODS[given.method]
        seeded = [f"{key}={seed}" for key in ("seed", *sizes.seeded)]
        self._sets = [*seeded, *sizes.settings, *given.set]
        self._missing = [arm for arm in ARMS if self._recorded(arm) is None]
        if self._missing:
            parts = [
                (warming(given.method, self._sets), "control"),
                *(([*self._sets, "warm_start=null"], ARMS[arm]) for arm in self._missing),
            ]
            report.plan(sum(steps_of(given.method, sets, profile) for sets, profile in parts))

    def run(self) -> list[Arm]:
        """Returns the arms, those of the record as they are; fewer if a training failed, which is reported."""
        try:
            for arm in self._missing:
                self._train(arm, *self._warm_start())
        except TrainingFailed as error:
            self._report.problem(f"{self._given.method}, seed {self._seed} failed: {error}")
        return [found for arm in ARMS if (found := self._recorded(arm)) is not None]

    def _recorded(self, arm: str) -> Arm | None:
        held = self._record.find(method=self._given.method, arm=arm, set=self._sets)
        return None if held is None else Arm(**{name: held[name] for name in Arm.__struct_fields__})

    @cache  # noqa: B019  # as long as the pair
    def _warm_start(self) -> tuple[Path, dict[str, float]]:
        """Trains the warm start of the method's recipe, a run of its own; returns its weights and its success."""
        folder = self._folder / "warm"
        start = run_warm_start(self._given.method, folder, self._sets, self._report, profile="control")
        return start, self._success(start, start, folder)

    def _train(self, arm: str, start: Path, success: dict[str, float]) -> None:
        folder = self._folder / arm
        sets = [*self._sets, *weights(start), "eval=null", f"train.keep.last={MANY}"]
        trained = run_training(self._given.method, folder, sets, self._report, profile=ARMS[arm])
        sampled = list(accumulate((line["sampled_tokens"] for line in trained.of("train")), initial=0))
        stored = {int(path.name.removeprefix("it-")): path for path in (folder / "checkpoints").glob("it-*")}
        stored.pop(0, None)
        successes = [success, *(self._success(stored[k], start, folder / f"evaluated-{k}") for k in sorted(stored))]
        done = Arm(
            method=self._given.method,
            arm=arm,
            seed=self._seed,
            tokens=[sampled[iteration] for iteration in (0, *sorted(stored))],
            success={name: [each[name] for each in successes] for name in success},
            seconds=round(trained.cpu_seconds, 1),
        )
        self._record.add(set=self._sets, **{name: getattr(done, name) for name in Arm.__struct_fields__})
        curve = " ".join(f"{each:.2f}" for each in done.compared)
        self._report.say(f"{self._given.method}, {arm}, seed {self._seed}: {curve}")

    def _success(self, checkpoint: Path, start: Path, folder: Path) -> dict[str, float]:
        """Success of a checkpoint with the control's recipe."""
        found = {}
        for name, settings in METHODS[self._given.method].evaluations.items():
            own = [each.replace("{start}", str(start.resolve())) for each in settings]
            sets, out = [*self._sets, *weights(checkpoint), *own], folder / f"eval-{name.replace(' ', '-')}"
            metrics = run_evaluation(
                self._given.method, out, sets, self._report, episodes=self._given.episodes, profile="control"
            )
            found[name] = float(metrics["success"])
        return found


def values(method: Arm, control: Arm) -> tuple[float, float]:
    """The mean success of both over the tokens up to the smaller total."""
    budget = min(method.tokens[-1], control.tokens[-1])
    return mean_up_to(budget, method), mean_up_to(budget, control)


def mean_up_to(budget: float, arm: Arm) -> float:
    """The mean of the success over the first `budget` tokens; between two checkpoints it changes linearly."""
    area = 0.0
    for (begin, low), (end, high) in pairwise(zip(arm.tokens, arm.compared, strict=True)):
        upto = min(end, budget)
        if upto > begin:
            area += (upto - begin) * (low + (low + (high - low) * (upto - begin) / (end - begin))) / 2
    return area / budget


def draw(pairs: Sequence[Sequence[Any]], path: Path) -> None:
    """Held-out success by sampled tokens: a line for each training."""
    with curves(path, "tokens that the policy sampled (thousands)", "held-out success") as axes:
        for arm, colour in zip(ARMS, ("C0", "C1"), strict=True):
            for seed, found in enumerate(each for pair in pairs for each in pair if each.arm == arm):
                thousands = [tokens / 1000 for tokens in found.tokens]
                label = f"{found.method}" if arm == "method" else "its control"
                axes.plot(thousands, found.compared, color=colour, alpha=0.6, label=None if seed else label)


if __name__ == "__main__":
    sys.exit(main())
