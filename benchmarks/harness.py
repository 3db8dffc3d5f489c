"""The base of all benchmarks: a command line with `--smoke`, progress, a last line of JSON that fits a schema.

A benchmark declares its rows and a `Benchmark` beside its code; `python -m benchmarks` finds and runs them all.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from agentrl.store.info import circumstances

ROOT = Path(__file__).resolve().parents[1]
SAY_EVERY_S = 3.0


class Missing(Exception):
    """A part of a benchmark, or all of it, cannot run here; the text says why, and what to install."""


class Row(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """Figures of one thing that was measured. A benchmark with several kinds of rows tags them with their names."""


class Ratio(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ratio of a figure of ours to another one of the same run.

    Attributes:
        figure: what was measured, with its unit.
        ours, other: names of what was measured.
        ratio: of our value to the other one.
    """

    figure: str
    ours: str
    other: str
    our_value: float
    other_value: float
    ratio: float


class Machine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The machine of a run.

    Attributes:
        load: averages of a minute, when the benchmark began and when it ended.
    """

    cores: int
    processor: str
    memory_gib: float
    system: str
    gpu: str | None
    load: tuple[float, float]


class Result(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The last line of a benchmark.

    Attributes:
        command: what reproduces it.
        began: date and time, UTC.
        cpu_seconds: of the process and of those that it waited for, imports included.
        commit: of this repository; `+` if files were changed since.
        rows: of the types that the benchmark declares.
        left_out: peers that a smoke run does not look at.
        missing: what could not run here, and why.
        problems: each makes the exit code 1.
    """

    benchmark: str
    smoke: bool
    command: str
    began: str
    seconds: float
    cpu_seconds: float
    commit: str
    versions: dict[str, str]
    machine: Machine
    rows: list[Any]
    ratios: list[Ratio]
    left_out: list[str]
    missing: dict[str, str]
    problems: list[str]


@dataclass(frozen=True)
class Benchmark:
    """The declaration of a benchmark by its module.

    Attributes:
        file: its `__file__`.
        about: its docstring, whose first sentence says what it measures.
        rows: a Row, or a union of some.
        kind: `compare` runs in `make bench`, `curve` in `make curves`, `measure` by hand only.
        beside: what it compares with.
        smoke: defaults of its arguments in the smallest run.
        runs: arguments of each run in `make bench` or `make curves`. `{commit}` is an earlier one.
        minutes: its share of the hour of `make bench`; 0: it may take as long as it takes.
        peers: names in `benchmarks.peers.venv.PEERS` that it needs.
    """

    file: str
    about: str | None
    rows: Any
    kind: Literal["compare", "curve", "measure"]
    beside: str
    smoke: Mapping[str, Any]
    runs: Sequence[str] = ("",)
    minutes: float = 0
    peers: Sequence[str] = ()

    @property
    def name(self) -> str:
        return Path(self.file).stem

    @property
    def title(self) -> str:
        """Returns the first words of its docstring: the quantity that it measures."""
        return (self.about or "").partition(": `python -m ")[0]

    def parser(self) -> argparse.ArgumentParser:
        """A parser with what all benchmarks understand."""
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}",
            description=self.about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "--smoke", action="store_true", help="smallest sizes, without peers: shows that the benchmark works"
        )
        return parser

    def run(self, parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace, Report], None]) -> int:
        """Reads the command line, measures, and prints the result. Returns the exit code."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's programs in the background ignore it
        with ExitStack() as stack:
            given = parser.parse_args()
            if given.smoke:
                parser.set_defaults(**self._smallest(given, stack))
                given = parser.parse_args()
            report = Report(self.name, smoke=given.smoke)
            try:
                measure(given, report)
            except Missing as why:
                report.miss(self.name, str(why))
        line = msgspec.json.encode(report.result())
        read(line, self)
        for text in report.problems:
            report.say(f"problem: {text}")
        print(line.decode(), flush=True)
        return int(bool(report.problems))

    def _smallest(self, given: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
        """Defaults of a smoke run. It writes to a folder of its own: it shall not go on where another one stopped."""
        unknown = self.smoke.keys() - vars(given).keys()
        assert not unknown, f"benchmarks/{self.name}.py: `smoke` names {unknown}, which the command line does not have"
        smallest = dict(self.smoke)
        if "out" in vars(given):
            smallest["out"] = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-benchmark-")))
        return smallest


@dataclass
class Report:
    """The output of a benchmark: progress while it runs, and its result.

    Attributes:
        write: takes the lines of progress.
        clock: seconds.
    """

    name: str
    smoke: bool = False
    rows: list[Row] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    write: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._began, self._said = self.clock(), -SAY_EVERY_S
        self._steps, self._done = 0.0, 0.0
        self._mutex = threading.Lock()
        self._when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        self._load = os.getloadavg()[0]

    def plan(self, steps: float) -> None:
        """So many further steps will be done. They should take about as long each."""
        self._steps += steps

    def done(self, what: str, steps: float = 1) -> None:
        """Some planned steps are done. Says so, and how long the rest will take at this rate."""
        with self._mutex:
            self._done += steps
            now = self.clock()
            if now - self._said < SAY_EVERY_S and self._done < self._steps:
                return
            self._said, took = now, now - self._began
            left = took / self._done * max(0.0, self._steps - self._done)
        self.say(f"{self._done:g} of {self._steps:g}, {duration(took)}, about {duration(left)} left ({what})")

    def say(self, text: str) -> None:
        """Tells people something."""
        self.write(f"{self.name}: {text}")

    def row(self, row: Row) -> None:
        """Adds a row to the result."""
        self.rows.append(row)

    def ratio(self, figure: str, ours: tuple[str, float], other: tuple[str, float]) -> None:
        """Adds our value beside another one; not if that is 0, which only values of smoke runs are."""
        if other[1]:
            values = {"our_value": ours[1], "other_value": other[1], "ratio": ours[1] / other[1]}
            rounded = {name: float(f"{value:.4g}") for name, value in values.items()}
            self.ratios.append(Ratio(figure=figure, ours=ours[0], other=other[0], **rounded))

    def leave_out(self, peer: str) -> None:
        """A peer is not looked at, because this is a smoke run."""
        self.say(f"{peer} is left out of a smoke run")
        self.left_out.append(peer)

    def miss(self, what: str, why: str) -> None:
        """A part cannot run here."""
        self.say(f"{what} cannot run: {why}")
        self.missing[what] = why

    def problem(self, text: str) -> None:
        """Something is wrong: the exit code will be 1."""
        self.problems.append(text)

    def budget(self, text: str, value: float, *, at_most: float) -> None:
        """A promise; if it is broken, that is a problem. Smoke runs are too small for any."""
        if not self.smoke:
            self.say(f"{text}: {value:.3g}, at most {at_most:g}")
            if value > at_most:
                self.problem(f"{text}: {value:.3g}, more than {at_most:g}")

    def result(self) -> Result:
        """All that was told, as the last line has it."""
        noted = circumstances()
        git = noted.get("git", {"commit": "unknown", "dirty": False})
        return Result(
            benchmark=self.name,
            smoke=self.smoke,
            command=shlex.join(["python", "-m", f"benchmarks.{self.name}", *sys.argv[1:]]),
            began=self._when,
            seconds=round(self.clock() - self._began, 1),
            cpu_seconds=round(sum(os.times()[:4]), 1),
            commit=git["commit"][:10] + "+" * git["dirty"],
            versions=noted["versions"],
            machine=this_machine(self._load),
            rows=self.rows,
            ratios=self.ratios,
            left_out=self.left_out,
            missing=self.missing,
            problems=self.problems,
        )


def read(line: str | bytes, of: Benchmark) -> Result:
    """The last line of a benchmark.

    Raises:
        ValueError: it does not fit the schema; the text says where.
    """

    def refuse(why: str) -> NoReturn:
        raise ValueError(f"the last line of benchmarks.{of.name} is no result: {why}")

    try:
        result = msgspec.json.decode(line, type=Result)
        of_them = msgspec.defstruct("Rows", [("rows", list[of.rows])])  # type: ignore[name-defined]
        rows: Any = msgspec.json.decode(line, type=of_them)
        result.rows = rows.rows
    except msgspec.MsgspecError as error:
        refuse(str(error))
    if result.benchmark != of.name:
        refuse(f"it is of {result.benchmark}")
    if not result.rows and not result.missing:
        refuse("it has no rows, and nothing is missing")
    return result


def this_machine(load: float) -> Machine:
    """The machine; `load`: before the benchmark."""
    return Machine(
        cores=os.cpu_count() or 1,
        processor=_field("/proc/cpuinfo", "model name") or platform.machine(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        system=f"{platform.system()} {platform.release()}",
        gpu=_gpu(),
        load=(round(load, 1), round(os.getloadavg()[0], 1)),
    )


def _field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _gpu() -> str | None:
    torch = sys.modules.get("torch")  # a benchmark without torch does not use a GPU
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def duration(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"
