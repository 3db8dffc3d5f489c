"""`python -m benchmarks.sandbox`: ways to have a sandbox, side by side in one run.

The arms take turns within every round, so that a machine that is busy is busy for all. An arm that cannot run is
named with the reason. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.types.errors import AgentRLError
from agentrl.types.sandbox import SandboxSpec
from benchmarks.sandbox_arms import Arm, DockerExec, Missing, Ours, SweRex

ONCE_A_ROUND = ("create", "first exec")
REPEATED = ("exec", "shell", "cell", "file")
AT_THE_END = ("64 execs", "two sleeps", "64 sandboxes")
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
RATIOS = (  # numerator (arm, column), denominator, at least
    (("docker exec", "exec"), ("docker pooled", "exec"), 10.0),
    (("swe-rex", "create"), ("namespace", "create"), None),
    (("swe-rex", "exec"), ("namespace", "exec"), None),
    (("swe-rex", "shell"), ("namespace", "shell"), None),
    (("docker", "create"), ("namespace", "create"), None),
    (("docker exec", "exec"), ("namespace", "exec"), None),
)

Samples = dict[str, dict[str, list[float]]]


async def measure(arms: list[Arm], rounds: int, repeats: int) -> tuple[Samples, dict[str, str]]:
    """Milliseconds by arm and column, and the arms that could not run, with the reason."""
    samples: Samples = {}
    missing: dict[str, str] = {}
    live: list[Arm] = []

    async def attempt(arm: Arm, what: str, *, keep: bool = True) -> None:
        if arm.name in missing:
            return
        try:
            took = await arm.sample(what)
        except Exception as error:
            missing[arm.name] = f"{what}: {type(error).__name__}: {error}"
            return
        if took is not None and keep:
            samples.setdefault(arm.name, {}).setdefault(what, []).append(took)

    try:
        for arm in arms:
            try:
                live.append(arm)
                await arm.open()
            except (Missing, AgentRLError, ImportError, OSError) as error:
                missing[arm.name] = str(error)
        for arm in live:  # the first of everything warms caches of files and code: not kept
            await attempt(arm, "create", keep=False)
        for _ in range(rounds):
            for what in ONCE_A_ROUND:
                for arm in live:
                    await attempt(arm, what)
            for arm in live:  # starts the shell and the kernel
                for what in ("shell", "cell"):
                    await attempt(arm, what, keep=False)
            for what in REPEATED:
                for arm in live:
                    for _ in range(repeats):
                        await attempt(arm, what)
        for what in AT_THE_END:
            for arm in live:
                await attempt(arm, what)
    finally:
        for arm in live:
            try:
                await arm.close()
            except Exception as error:
                missing.setdefault(arm.name, f"close: {error}")
    return samples, missing


def report(samples: Samples, missing: dict[str, str]) -> dict[str, Any]:
    """Medians, ratios and budgets."""
    p50 = {arm: {what: statistics.median(took) for what, took in rows.items()} for arm, rows in samples.items()}
    p95 = {
        arm: {what: sorted(took)[int(0.95 * (len(took) - 1))] for what, took in rows.items()}
        for arm, rows in samples.items()
    }
    budgets = [
        {"arm": arm, "what": what, "ms": round(p50[arm][what], 2), "at_most": most, "kept": p50[arm][what] <= most}
        for arm, what, most in BUDGETS
        if what in p50.get(arm, {})
    ]
    ratios = []
    for (slow, what), (fast, other), least in RATIOS:
        if what in p50.get(slow, {}) and other in p50.get(fast, {}):
            ratio = p50[slow][what] / p50[fast][other]
            row = {"of": f"{slow} {what}", "to": f"{fast} {other}", "ratio": round(ratio, 1), "at_least": least}
            ratios.append({**row, "kept": least is None or ratio >= least})
    rounded = {arm: {what: round(ms, 3) for what, ms in rows.items()} for arm, rows in p50.items()}
    tails = {arm: {what: round(ms, 3) for what, ms in rows.items()} for arm, rows in p95.items()}
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "kernel": platform.release()}
    return {
        "p50_ms": rounded, "p95_ms": tails, "ratios": ratios, "budgets": budgets, "missing": missing, "machine": machine
    }  # fmt: skip


def show(result: dict[str, Any], console: Console) -> None:
    """Tables for people."""
    table = Table(title="median milliseconds (two sleeps: of 1 s each, at the same time)")
    table.add_column("")
    for what in COLUMNS:
        table.add_column(what, justify="right")
    for arm, rows in result["p50_ms"].items():
        table.add_row(arm, *(f"{rows[what]:.3g}" if what in rows else "-" for what in COLUMNS))
    console.print(table)
    for row in result["ratios"]:
        goal = f" (at least {row['at_least']:g}: {'kept' if row['kept'] else 'MISSED'})" if row["at_least"] else ""
        console.print(f"{row['of']} / {row['to']} = {row['ratio']:g}{goal}")
    for row in result["budgets"]:
        verdict = "kept" if row["kept"] else "MISSED"
        console.print(f"{row['arm']} {row['what']}: {row['ms']:g} ms, at most {row['at_most']:g}: {verdict}")
    for arm, why in result["missing"].items():
        console.print(f"not run: {arm}: {why}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="sandboxes of each kind")
    parser.add_argument("--repeats", type=int, default=20, help="of each operation in each sandbox")
    parser.add_argument("--without", action="append", default=[], choices=["docker", "swe-rex"], help="leave out")
    options = parser.parse_args()
    console = Console(stderr=not sys.stdout.isatty(), width=160)
    arms: list[Arm] = [Ours("namespace", pooled=False), Ours("namespace", pooled=True)]
    refused: dict[str, str] = {}
    with ExitStack() as stack:
        if "docker" not in options.without:
            arms += docker_arms(stack, refused)
        if "swe-rex" not in options.without:
            arms.append(SweRex())
        samples, missing = asyncio.run(measure(arms, options.rounds, options.repeats))
    result = report(samples, {**refused, **missing})
    show(result, console)
    print(json.dumps(result))


def docker_arms(stack: ExitStack, refused: dict[str, str]) -> list[Arm]:
    """The arms that need a container engine: the one that answers, or a private one for the time of the run."""
    from tests.sandbox import dockerd

    if not dockerd.usable() and (why := dockerd.why_not()):
        refused["docker"] = refused["docker exec"] = why
        return []
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-benchmark-")))
    host = stack.enter_context(dockerd.engine(folder))
    spec = SandboxSpec(image=dockerd.IMAGE)
    return [
        Ours("docker", pooled=False, spec=spec, host=host),
        Ours("docker", pooled=True, spec=spec, host=host),
        DockerExec(host, dockerd.IMAGE),
    ]


if __name__ == "__main__":
    main()
