"""Runs the benchmarks: `python -m benchmarks [--smoke | --compare | --curves] [NAME ...]`.

Without an option it lists them. `--smoke` runs each at its smallest size, and fails if one does not end with a result
that fits its schema. `--compare` runs those that compare with a peer or an earlier commit, one after another, and
writes docs/results/benchmarks.md. `--curves` runs those that train until something is learned: hours.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from benchmarks import forked, page
from benchmarks.harness import ROOT, Benchmark, Missing, duration, read
from benchmarks.page import Outcome
from benchmarks.peers.venv import INSTALL_S, python_of

PAGE = ROOT / "docs" / "results" / "benchmarks.md"
LOGS = ROOT / "build" / "benchmarks" / "logs"
FIRST = "52c2821"
"""The commit that --compare looks back to, until a page of another one is committed."""
SMOKE_S = 600.0
"""A smoke run takes seconds; this only ends one that hangs."""
SMOKE = "--smoke"


def modules() -> list[str]:
    """The names of all programs of this folder, but for this one. Arms of benchmarks are in `peers`."""
    files = sorted(path for path in Path(__file__).parent.glob("*.py") if path.stem != "__main__")
    return [path.stem for path in files if '__name__ == "__main__"' in path.read_text()]


def declared(name: str) -> Benchmark:
    """Returns the declaration of a benchmark."""
    found: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--smoke", action="store_true", help="each at its smallest size, without peers")
    does.add_argument("--compare", action="store_true", help="those that compare, within the hour")
    does.add_argument("--curves", action="store_true", help="those that draw learning curves")
    parser.add_argument("--complete", action="store_true", help="with --smoke: what cannot run here is an error")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="with --smoke: so many at a time")
    parser.add_argument("--commit", help="with --compare: an earlier one to compare with; default: that of the page")
    parser.add_argument("--page", type=Path, help="with --compare: default docs/results/benchmarks.md, if all are run")
    given = parser.parse_args()
    if unknown := set(given.names) - {*modules()}:
        parser.error(f"there is no {sorted(unknown)[0]!r}; there are: {', '.join(modules())}")
    if given.smoke:
        return smoke(given)
    benchmarks, broken = [], []
    for name in given.names or modules():
        try:
            benchmarks.append(declared(name))
        except Exception as error:
            broken.append(Outcome(name, "", 0.0, failure=f"it cannot be imported: {type(error).__name__}: {error}"))
    if given.compare:
        compared = [each for each in benchmarks if each.kind == "compare"]
        return verdict([*broken, *compare(compared, given)])
    if given.curves:
        return verdict([*broken, *in_turn([each for each in benchmarks if each.kind == "curve"])])
    print("\n".join(page.overview(benchmarks)))
    return verdict(broken) if broken else 0


def smoke(given: argparse.Namespace) -> int:
    """Runs each at its smallest size, some at a time; 1 if one fails."""
    names = given.names or modules()
    print("importing the benchmarks, once for all", flush=True)
    for name in names:
        with suppress(Exception):  # said when it runs
            declared(name)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    for outcome in in_forks(names, given.jobs):
        outcomes.append(outcome)
        took, done = time.monotonic() - began, len(outcomes)
        left = duration(took / done * (len(names) - done))
        state = "FAILED" if outcome.failures(complete=given.complete) else "is well"
        print(f"{done} of {len(names)}, about {left} left: {outcome.name} {state}", flush=True)
    print(f"\n{'benchmark':<20}{'seconds':>8}{'CPU s':>8}  rows  not run")
    cpu = {each.name: each.result.cpu_seconds if each.result else 0.0 for each in outcomes}
    for each in outcomes:
        rows, missing = (len(each.result.rows), each.result.missing) if each.result else (0, {})
        print(f"{each.name:<20}{each.seconds:>8.1f}{cpu[each.name]:>8.1f}{rows:>6}  {', '.join(missing)}")
    print(f"{'all':<20}{time.monotonic() - began:>8.1f}{sum(cpu.values()):>8.1f}\n")
    missing = {what: why for each in outcomes if each.result for what, why in each.result.missing.items()}
    for what, why in missing.items():
        print(f"not run: {what}: {why}")
    return verdict(outcomes, complete=given.complete)


def in_forks(names: Sequence[str], jobs: int) -> Iterator[Outcome]:
    """Smoke runs in forks of this process, `jobs` at a time, as they end."""
    LOGS.mkdir(parents=True, exist_ok=True)
    waiting, running = list(names), dict[int, tuple[str, int, float]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                with output(name, SMOKE, "out") as stdout, output(name, SMOKE, "log") as stderr:
                    to = stdout.fileno(), stderr.fileno()
                    pid = forked.start(["-m", f"benchmarks.{name}", SMOKE], surroundings(), *to, leads=True)
                running[os.pidfd_open(pid)] = name, pid, time.monotonic()
            first = min(began for _, _, began in running.values())
            ended, _, _ = select.select([*running], [], [], max(0.0, first + SMOKE_S - time.monotonic()))
            for descriptor, (name, pid, began) in list(running.items()):
                took = time.monotonic() - began
                if descriptor in ended or took >= SMOKE_S:
                    del running[descriptor]
                    os.close(descriptor)
                    code = finish(pid)
                    yield outcome_of(name, SMOKE, took, code if descriptor in ended else None)
    finally:
        for descriptor, (_, pid, _) in running.items():
            os.close(descriptor)
            finish(pid)


def finish(pid: int) -> int:
    """Ends a fork and what it left behind, and returns its exit code."""
    kill(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def compare(benchmarks: Sequence[Benchmark], given: argparse.Namespace) -> list[Outcome]:
    """Runs those that compare, one after another, the shortest first, and writes the page after each."""
    whole = not given.names
    path = given.page or (PAGE if whole else ROOT / "build" / "benchmarks" / "benchmarks.md")
    commit = given.commit or page_commit()
    outcomes: list[Outcome] = []
    spare, began = 0.0, time.monotonic()
    for peer in dict.fromkeys(peer for each in benchmarks for peer in each.peers):
        print(f"installing {peer}", flush=True)
        try:
            python_of(peer)
        except Missing as why:
            print(why)
        spare += INSTALL_S
    spare -= time.monotonic() - began
    for outcome in in_turn(sorted(benchmarks, key=lambda each: each.minutes), commit, spare):
        outcomes.append(outcome)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.page(outcomes, benchmarks))
    print(f"written: {path}")
    return outcomes


def in_turn(benchmarks: Sequence[Benchmark], commit: str = "", spare: float = 0.0) -> Iterator[Outcome]:
    """Runs benchmarks one after another, with all arguments that they declare.

    Args:
        spare: seconds that they may take together beyond their own minutes. What one does not need, the next ones have.
    """
    jobs = [(each, arguments.format(commit=commit)) for each in benchmarks for arguments in each.runs]
    budget = sum(60 * each.minutes for each, _ in jobs)
    print(f"{len(jobs)} runs" + (f", at most {duration(budget)}" if budget else ""), flush=True)
    for number, (each, arguments) in enumerate(jobs, 1):
        print(f"{number} of {len(jobs)}: python -m benchmarks.{each.name} {arguments}", flush=True)
        spare += 60 * each.minutes
        outcome = run(each.name, arguments, spare if each.minutes else None)
        spare -= outcome.seconds
        failed, tables = ": FAILED" * bool(outcome.failures()), path_of(each.name, arguments, "out")
        print(f"{each.name} took {duration(outcome.seconds)}{failed}; tables are in {tables}", flush=True)
        yield outcome


def page_commit() -> str:
    """The last commit that changed the page."""
    argv = ["git", "log", "-1", "--format=%h", "--", str(PAGE)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or FIRST


def run(name: str, arguments: str, timeout_s: float | None) -> Outcome:
    """Runs a benchmark in a process of its own, which says its progress, and reads its last line."""
    LOGS.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", f"benchmarks.{name}", *shlex.split(arguments)]
    began = time.monotonic()
    with output(name, arguments, "out") as stdout:
        code = end(
            subprocess.Popen(
                argv, cwd=ROOT, env=surroundings(), stdin=subprocess.DEVNULL, stdout=stdout, start_new_session=True
            ),
            timeout_s,
        )
    return outcome_of(name, arguments, time.monotonic() - began, code)


def surroundings() -> dict[str, str]:
    """The environment of a benchmark."""
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1"}


def output(name: str, arguments: str, suffix: str) -> BinaryIO:
    """An empty file for what a run says."""
    return path_of(name, arguments, suffix).open("wb")


def outcome_of(name: str, arguments: str, seconds: float, code: int | None) -> Outcome:
    """Outcome of a run.

    Args:
        code: its exit code; None if it took too long.
    """
    outcome = Outcome(name, arguments, seconds)
    lines, said = (path_of(name, arguments, suffix) for suffix in ("out", "log"))
    try:
        outcome.result = read(["", *lines.read_text(errors="replace").splitlines()][-1], declared(name))
    except Exception as error:  # also of its import
        outcome.failure = str(error) if code == 0 else f"exit code {code}"
        if said.exists():
            outcome.failure += "".join(f"\n{line}" for line in said.read_text(errors="replace").splitlines()[-25:])
    if code is None:
        outcome.failure = f"it did not end within {seconds:.0f} s"
    return outcome


def path_of(name: str, arguments: str, suffix: str) -> Path:
    """The file of what a run says: `out` (tables and the last line) or `log` (progress)."""
    return LOGS / (re.sub(r"[^\w.]+", "-", f"{name} {arguments}").strip("-") + f".{suffix}")


def end(process: subprocess.Popen[bytes], timeout_s: float | None) -> int | None:
    """The exit code of a process; None if it did not end in time. Then it is interrupted, so that it cleans up."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        return None
    finally:
        kill(process.pid)
        process.wait()


def kill(group: int) -> None:
    """Ends what is left of a benchmark."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def verdict(outcomes: Sequence[Outcome], *, complete: bool = False) -> int:
    """Names what failed; 1 if something did."""
    failed = {each.command: wrong for each in outcomes if (wrong := each.failures(complete=complete))}
    for name, wrong in failed.items():
        print(f"FAILED: {name}: " + "\n  ".join(wrong))
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} benchmarks are well")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
