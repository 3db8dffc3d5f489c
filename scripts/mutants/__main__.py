"""Counts the small faults in agentrl/ that the tests notice.

    python -m scripts.mutants run OUT.jsonl --seed 1 [--also CHECKOUT] [--checkout CHECKOUT] [--coverage DATA]
    python -m scripts.mutants report OUT.jsonl [OUT2.jsonl ...]

`run` draws faults (`mutations.py`) by a seed, over all rooms. It puts each into a clone of a commit, and runs
the tests of the rooms that import the file until one fails (`selection.py`): first those that `make check` selects,
then the others. With `--coverage`, which `python -m scripts.room_coverage run --data` writes at the same commit, only
those that run the line. A test that fails counts if it passes without the fault; else it is left out from there on.

The faults are those that the files of this tree, of `--checkout` and of `--also` have in common, so that the suites of
two commits are tried on the same ones. Each result is a line of JSON; `run` goes on where it was stopped. `report`
prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.copies import REPEATABLE, ROOT, WORK, Copy, copies_of, git, room_of, venv_here
from scripts.mutants.mutations import Key, Mutation, draw, mutations_of
from scripts.mutants.selection import Choice, Suite, choose, seconds_of
from tests.plugins.selection import is_slow

SUITES = (("check", "not slow"), ("test", "slow"))
"""Names of suites and the marks of their tests: first those of `make check`, then the others of `make test`."""
NO_TESTS = 5
"""The exit code of pytest when nothing was selected."""
KILLED, SURVIVED, LIMIT = "killed", "survived", "out of time"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description="Faults that the tests notice")
    kinds = parser.add_subparsers(required=True)
    run = kinds.add_parser("run", help="draw faults and test each")
    run.add_argument(
        "out", type=Path, help="lines of JSON; a fault with a result is not tried again, unless out of time"
    )
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--count", type=int, default=40)
    run.add_argument("--checkout", type=Path, default=ROOT, help="whose commit is tested")
    run.add_argument("--also", type=Path, action="append", default=[], help="draw only what this has too")
    run.add_argument("--suite", choices=("check", "test"), default="test", help="the last tests that are tried")
    run.add_argument("--one-suite", action="store_true", help="the commit has no tests that are marked slow")
    run.add_argument("--coverage", type=Path, help="database of coverage of the same commit")
    run.add_argument("--costs", type=Path, help="JSON: seconds of tests or files; default: tests/costs.json")
    run.add_argument("--survivors", action="store_true", help="try survivors again, with all tests of the rooms")
    run.add_argument("--only", nargs="*", help="ids of faults")
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--test-seconds", type=int, default=300, help="a test that takes longer has noticed")
    run.add_argument("--mutant-seconds", type=int, default=1800, help="a fault is given up after so long")
    run.add_argument("--list", action="store_true", help="print the faults and their tests, and run none")
    run.add_argument("--venv", type=Path, default=venv_here(), help="whose packages the copies use")
    run.add_argument("--work", type=Path, default=WORK, help="where the copies are made")
    run.set_defaults(do=run_all)
    report = kinds.add_parser("report", help="a table by room, and the survivors")
    report.add_argument("files", type=Path, nargs="+")
    report.set_defaults(do=print_report)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    given.do(given)
    return 0


def run_all(given: argparse.Namespace) -> None:
    """Draws, and tries each fault that has no result yet."""
    here = mutations_of(given.checkout)
    keys = drawn(given, here)
    done = results(given.out)
    if given.survivors:
        todo = [key for key in keys if key.id in done and done[key.id]["status"] == SURVIVED and done[key.id]["chosen"]]
    else:
        todo = [key for key in keys if key.id not in done or done[key.id]["status"] == LIMIT]
    todo = [key for key in todo if given.only is None or key.id in given.only]
    costs = given.costs or given.checkout / "tests" / "costs.json"
    tests = Suite(given.checkout, seconds_of(costs) if given.costs or costs.exists() else {})
    database = None if given.survivors else given.coverage
    plan = [(here[key], choose(tests, here[key], database)) for key in todo]
    if given.list:
        for mutation, choice in plan:
            print(described(mutation), f"tests of {len(choice.files)} files" if choice.only is None else _told(choice))
        return
    if git(given.checkout, "status", "--porcelain", "--", "agentrl", "tests"):
        sys.exit(
            f"{given.checkout} has changes in agentrl/ or tests/, and its last commit is what is tested: commit them"
        )
    commit = git(given.checkout, "rev-parse", "HEAD")
    print(f"{len(plan)} of {len(keys)} faults to try on {commit[:12]}", flush=True)
    with copies_of(given.checkout, given.jobs, given.work, given.venv) as copies:
        benches = [Bench(copy, given) for copy in copies]
        try_all(plan, benches, lambda row: _write(given.out, {**row, "commit": commit}))


def try_all(plan: list[tuple[Mutation, Choice]], benches: list[Bench], done: Callable[[dict[str, Any]], None]) -> None:
    """Tries each fault on the bench that is free first; nothing runs on when it is interrupted."""
    free: queue.Queue[Bench] = queue.Queue()
    for bench in benches:
        free.put(bench)

    def one(mutation: Mutation, choice: Choice) -> dict[str, Any]:
        bench = free.get()
        started = time.monotonic()
        try:
            result = bench.try_fault(mutation, choice)
        finally:
            free.put(bench)
        return {**noted(mutation), **result, "seconds": round(time.monotonic() - started, 1)}

    pool = ThreadPoolExecutor(len(benches))
    try:
        for tried in as_completed([pool.submit(one, *planned) for planned in plan]):
            done(tried.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for bench in benches:
            bench.close()
        pool.shutdown()


def _write(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{row['status']:<11} {row['id']} {row['path']}:{row['line']} {row['kind']}  {row['test']}", flush=True)


def drawn(given: argparse.Namespace, here: dict[Key, Mutation]) -> list[Key]:
    """The faults of the seed, of those that all trees have."""
    common = set(here)
    for root in {path.resolve() for path in (ROOT, *given.also)} - {given.checkout.resolve()}:
        common &= mutations_of(root).keys()
    weights: Counter[str] = Counter()
    for file in sorted((ROOT / "agentrl").rglob("*.py")):
        weights[room_of(str(file.relative_to(ROOT)))] += len(file.read_bytes().splitlines())
    return draw(sorted(common), weights, given.count, given.seed)


def described(mutation: Mutation) -> str:
    """One line: id, place, kind, edit."""
    key = mutation.key
    return f"{key.id} {key.path}:{mutation.line} {key.kind}: {_short(key.old)} -> {_short(key.new)}"


def noted(mutation: Mutation) -> dict[str, Any]:
    """The fields of a result that say what was tried."""
    key = mutation.key
    place = {"id": key.id, "room": room_of(key.path), "path": key.path, "line": mutation.line, "scope": key.scope}
    return {**place, "kind": key.kind, "old": key.old, "new": key.new}


def _told(choice: Choice) -> str:
    return f"{len(choice.only or ())} contexts in {len(choice.files)} files"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 70 else f"{flat[:69]}…"


@dataclass
class Ended:
    """The end of a run of pytest.

    Attributes:
        failed: what failed: a test, or what could not be collected; empty if nothing did.
        why: the first line of its error.
        ran: tests that passed.
        in_time: whether it ended by itself.
    """

    failed: str
    why: str
    ran: int
    in_time: bool = True


class Bench:
    """A copy in which faults are tried, one at a time."""

    def __init__(self, copy: Copy, given: argparse.Namespace) -> None:
        self.copy = copy
        self.given = given
        self.broken: set[str] = set()
        self._closed = False
        self._changes = 0
        self._running: subprocess.Popen[bytes] | None = None
        (copy.packages / "chosen_tests.py").symlink_to(Path(__file__).with_name("chosen_tests.py"))
        self._choice = copy.root / "build" / "chosen.json"
        self._result = self._choice.with_suffix(".result")
        self._log = copy.root / "build" / "pytest.log"
        self._choice.parent.mkdir(exist_ok=True)
        self._passes = cache(self._passes_now)

    def close(self) -> None:
        """Ends what runs, and starts nothing more."""
        self._closed = True
        self._kill()

    def _kill(self) -> None:
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()

    def try_fault(self, mutation: Mutation, choice: Choice) -> dict[str, Any]:
        """Runs the suites in turn until a test fails because of the fault."""
        ends = time.monotonic() + self.given.mutant_seconds
        result: dict[str, Any] = {"suite": "", "test": "", "why": "", "chosen": choice.only is not None, "ran": 0}
        for suite, marks in suites(self.given.one_suite, self.given.suite):
            ended = self._first_failure(mutation, choice, marks, ends)
            result["ran"] += ended.ran
            if ended.failed:
                return {"status": KILLED, **result, "suite": suite, "test": ended.failed, "why": ended.why}
            if not ended.in_time:
                return {"status": LIMIT, **result, "suite": suite}
        return {"status": SURVIVED, **result}

    def _first_failure(self, mutation: Mutation, choice: Choice, marks: str, ends: float) -> Ended:
        """A failure that does not happen without the fault, or how the run ended."""
        while True:
            with self._with(mutation):
                ended = self._pytest(choice, marks, ends - time.monotonic())
            if not ended.failed or not ended.in_time or self._passes(ended.failed):
                return ended
            self.broken.add(ended.failed)
            print(f"fails without a fault too: {ended.failed}", flush=True)

    def _passes_now(self, test: str) -> bool:
        only = frozenset({test}) if "::" in test else None
        ended = self._pytest(Choice((test.split("::")[0],), only), "", self.given.mutant_seconds)
        if not self._result.exists():
            raise RuntimeError(f"pytest does not start, without a fault too:\n{self._log.read_text()}")
        return not ended.failed

    def _left_out(self, file: str, marks: str) -> bool:
        """Returns True if marks leave out a whole file: it need not be imported."""
        return marks == "not slow" and is_slow(self.copy.root / file)

    @contextmanager
    def _with(self, mutation: Mutation) -> Iterator[None]:
        path = self.copy.root / mutation.key.path
        sound = path.read_bytes()
        self._write(path, mutation.applied(sound))
        try:
            yield
        finally:
            self._write(path, sound)

    def _write(self, path: Path, text: bytes) -> None:
        """Writes a file with a time that it never had: bytecode is old by the second and size of its file."""
        self._changes += 1
        path.write_bytes(text)
        os.utime(path, (self._changes * 10, self._changes * 10))

    def _pytest(self, choice: Choice, marks: str, seconds: float) -> Ended:
        files = [file for file in choice.files if file not in self.broken and not self._left_out(file, marks)]
        if not files:
            return Ended("", "", 0)
        only = None if choice.only is None else sorted(choice.only)
        self._choice.write_text(json.dumps({"files": files, "only": only, "skipped": sorted(self.broken)}))
        self._result.unlink(missing_ok=True)
        if self._closed:
            raise RuntimeError("no fault is tried any more")
        limit = ["--timeout", str(self.given.test_seconds)]
        options = ["-x", "-q", "--no-header", "-p", "chosen_tests", *REPEATABLE, "-m", marks, *limit]
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                [str(self.copy.python), "-m", "pytest", *options, *files],
                cwd=self.copy.root,
                env={**self.copy.environment, "AGENTRL_CHOSEN_TESTS": str(self._choice)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            code: int | None = self._running.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self._kill()
        told = json.loads(self._result.read_text()) if self._result.exists() else {}
        return ended_with(code, told, files[0])


def ended_with(code: int | None, told: dict[str, Any], first: str) -> Ended:
    """Reads the exit code of pytest and the notes of `chosen_tests.py`.

    Args:
        code: None if it was stopped.
        first: the test file to which an end before the first test is put down.
    """
    ran = told.get("ran", 0)
    if code is None:
        return Ended("", "", ran, in_time=False)
    if code in (0, NO_TESTS) or (told.get("finished") and not told["failed"]):
        return Ended("", "", ran)
    failed = told.get("failed") or told.get("started") or first
    return Ended(failed, told.get("why") or f"pytest ended with {code}", ran)


def suites(one: bool, last: str) -> list[tuple[str, str]]:
    """Names and marks of the suites that are tried, in their order."""
    if one:
        return [("test", "")]
    return [*SUITES[: 1 if last == "check" else 2]]


def results(path: Path) -> dict[str, dict[str, Any]]:
    """The last result of each fault, by its id."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["id"]: row for row in rows}


def print_report(given: argparse.Namespace) -> None:
    """Prints tables of one or more files of results, side by side."""
    print(report({path.stem: [*results(path).values()] for path in given.files}))


def report(tables: dict[str, list[dict[str, Any]]]) -> str:
    """A table by room, and one of survivors, as Markdown."""
    rooms = sorted({row["room"] for rows in tables.values() for row in rows})
    heads = [f"{name}: {head}" for name in tables for head in ("faults", "killed by check", "killed in all")]
    lines = [_row("room", *heads), _row(*["---"] * (len(heads) + 1))]
    for room in [*rooms, "all"]:
        counts = [_counts([row for row in rows if room in (row["room"], "all")]) for rows in tables.values()]
        lines.append(_row(room, *(str(count) for three in counts for count in three)))
    for name, rows in tables.items():
        left = sorted((row for row in rows if row["status"] != KILLED), key=lambda row: (row["path"], row["line"]))
        lines += ["", f"Not killed in {name}:", "", _row("fault", "where", "what", "result"), _row(*["---"] * 4)]
        for row in left:
            edit = f"{row['kind']}: `{_short(row['old'])}` → `{_short(row['new'])}`".replace("|", "\\|")
            lines.append(_row(row["id"], f"{row['path']}:{row['line']}", edit, f"{row['status']}, {row['ran']} tests"))
    return "\n".join(lines)


def _counts(rows: list[dict[str, Any]]) -> tuple[int, int, int]:
    killed = [row for row in rows if row["status"] == KILLED]
    return len(rows), sum(row["suite"] == "check" for row in killed), len(killed)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
