"""Latency of ways to have a sandbox, side by side: `python -m benchmarks.sandbox`.

The arms take turns within every round, so that a machine that is busy is busy for all. An arm that cannot run is
named with the reason. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.types.sandbox import SandboxSpec
from benchmarks.harness import Benchmark, Missing, Report, Row
from benchmarks.sandbox_arms import Arm, DockerExec, Ours, SweRex

ONCE_A_ROUND = ("create", "first exec")
REPEATED = ("exec", "shell", "cell", "file")
AT_THE_END = ("execs at once", "two sleeps", "sandboxes at once")
COLUMNS = (*ONCE_A_ROUND, *REPEATED, *AT_THE_END)

BUDGETS = (  # arm, column, ms at most
    ("namespace", "create", 40.0),
    ("namespace", "exec", 8.0),
    ("namespace", "cell", 3.0),
    ("namespace pooled", "create", 5.0),
    ("namespace", "two sleeps", 1300.0),
    ("docker pooled", "create", 5.0),
    ("docker pooled", "two sleeps", 1300.0),
)
RATIOS = (  # arm, column, other arm, at most
    ("docker pooled", "exec", "docker exec", 0.1),
    ("docker", "create", "docker exec", None),
    ("docker", "file", "docker exec", None),
    ("docker", "execs at once", "docker exec", None),
    ("namespace", "create", "docker exec", None),
    ("namespace", "exec", "docker exec", None),
    ("namespace", "create", "swe-rex", None),
    ("namespace", "exec", "swe-rex", None),
    ("namespace", "shell", "swe-rex", None),
    ("namespace", "cell", "swe-rex", None),
    ("namespace", "create", "docker", None),
)


class Latency(Row):
    """Milliseconds of an operation."""

    arm: str
    operation: str
    samples: int
    p50_ms: float
    p95_ms: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Latency,
    kind="compare",
    beside="`docker exec` by the docker package, SWE-ReX 1.4.0",
    smoke={"rounds": 1, "repeats": 1, "at_once": 2, "without": ["swe-rex"]},
    runs=("--rounds 5",),
    minutes=4,
    peers=("swe-rex",),
)

Samples = dict[str, dict[str, list[float]]]


async def measure(arms: list[Arm], rounds: int, repeats: int, report: Report) -> Samples:
    """Milliseconds by arm and column."""
    samples: Samples = {}
    live: list[Arm] = []
    broken: set[str] = set()
    report.plan(rounds * (len(ONCE_A_ROUND) + len(REPEATED)) + len(AT_THE_END))

    def fails(arm: Arm, where: str, error: Exception) -> None:
        broken.add(arm.name)
        if isinstance(error, Missing):
            report.miss(arm.name, str(error))
        else:
            report.problem(f"{arm.name}, {where}: {type(error).__name__}: {error}")

    async def attempt(arm: Arm, what: str, *, keep: bool = True) -> None:
        if arm.name in broken:
            return
        try:
            took = await arm.sample(what)
        except Exception as error:
            fails(arm, what, error)
            return
        if took is not None and keep:
            samples.setdefault(arm.name, {}).setdefault(what, []).append(took)

    try:
        for arm in arms:
            try:
                await arm.open()
                live.append(arm)
            except Exception as error:
                fails(arm, "open", error)
        for arm in live:  # the first of everything warms caches of files and code: not kept
            await attempt(arm, "create", keep=False)
        for _ in range(rounds):
            for what in ONCE_A_ROUND:
                for arm in live:
                    await attempt(arm, what)
                report.done(what)
            for arm in live:  # starts the shell and the kernel
                for what in ("shell", "cell"):
                    await attempt(arm, what, keep=False)
            for what in REPEATED:
                for arm in live:
                    for _ in range(repeats):
                        await attempt(arm, what)
                report.done(what)
        for what in AT_THE_END:
            for arm in live:
                await attempt(arm, what)
            report.done(what)
    finally:
        for arm in live:
            try:
                await arm.close()
            except Exception as error:
                fails(arm, "close", error)
    return samples


def compare(samples: Samples, report: Report) -> dict[str, dict[str, float]]:
    """Reports medians, ratios and promises. Returns the medians by arm and operation."""
    p50 = {arm: {what: statistics.median(took) for what, took in rows.items()} for arm, rows in samples.items()}
    for arm, rows in samples.items():
        for what, took in rows.items():
            p95 = sorted(took)[math.ceil(0.95 * len(took)) - 1]
            report.row(
                Latency(
                    arm=arm, operation=what, samples=len(took), p50_ms=round(p50[arm][what], 3), p95_ms=round(p95, 3)
                )
            )
    for arm, what, most in BUDGETS:
        if what in p50.get(arm, {}):
            report.budget(f"ms of {what}, {arm}", p50[arm][what], at_most=most)
    for ours, what, other, at_most in RATIOS:
        if what in p50.get(ours, {}) and what in p50.get(other, {}):
            report.ratio(f"ms of {what}", (ours, p50[ours][what]), (other, p50[other][what]))
            if at_most is not None:
                report.budget(f"{what}, {ours} in {other}", p50[ours][what] / p50[other][what], at_most=at_most)
    return p50


def table(p50: dict[str, dict[str, float]]) -> Table:
    """A line for each arm."""
    made = Table(title="median milliseconds (two sleeps: of 1 s each, at the same time)")
    made.add_column("")
    for what in COLUMNS:
        made.add_column(what, justify="right")
    for arm, rows in p50.items():
        made.add_row(arm, *(f"{rows[what]:.3g}" if what in rows else "-" for what in COLUMNS))
    return made


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--rounds", type=int, default=10, help="sandboxes of each kind")
    parser.add_argument("--repeats", type=int, default=20, help="of each operation in each sandbox")
    parser.add_argument("--without", action="append", default=[], choices=["docker", "swe-rex"], help="leave out")
    parser.add_argument("--at-once", type=int, default=64, help="execs and sandboxes at the same time")
    return BENCHMARK.run(parser, measure_all)


def measure_all(given: argparse.Namespace, report: Report) -> None:
    arms: list[Arm] = [Ours("namespace", given.at_once), Ours("namespace", given.at_once, pooled=True)]
    with ExitStack() as stack:
        if "docker" not in given.without:
            arms += docker_arms(stack, given.at_once, report)
        if "swe-rex" not in given.without:
            arms.append(SweRex(given.at_once))
        elif given.smoke:
            report.leave_out("swe-rex")
        samples = asyncio.run(measure(arms, given.rounds, given.repeats, report))
    Console(width=160).print(table(compare(samples, report)))


def docker_arms(stack: ExitStack, at_once: int, report: Report) -> list[Arm]:
    """The arms that need a container engine: the one that answers, or a private one for the time of the run."""
    from tests.sandbox import dockerd

    if not dockerd.usable() and (why := dockerd.why_not()):
        report.miss("docker", why)
        return []
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-benchmark-")))
    host = stack.enter_context(dockerd.engine(folder))
    spec = SandboxSpec(image=dockerd.IMAGE)
    return [
        Ours("docker", at_once, spec=spec, settings={"host": host}),
        Ours("docker", at_once, pooled=True, spec=spec, settings={"host": host}),
        DockerExec(host, dockerd.IMAGE, at_once),
    ]


if __name__ == "__main__":
    sys.exit(main())
