"""CPU seconds of every test, those of the processes that it starts included, and the order of the files by them.

`--costs FILE` writes what each file cost. tests/costs.json is such a file. By it the files are handed out, the
costliest first, so that no long one is left for the end.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[1] / "costs.json"
"""CPU seconds by file, as `make costs` wrote them."""

SLOWEST = 50
GROUPS = (("/sys/fs/cgroup/cpuacct", "cpuacct.usage", "", 1e-9), ("/sys/fs/cgroup", "cpu.stat", "usage_usec", 1e-6))
"""Places of control groups (version 1, version 2): folder, file, its line, and seconds of a unit."""


class Meter:
    """Counts the CPU time of this process and of all that it starts, dead or alive.

    As a control group does. Without the right to make one: of this process and of those that it waited for.
    """

    def __init__(self) -> None:
        self._home: Path | None = None
        for root, file, line, unit in GROUPS:
            group = Path(root, f"pytest-{os.getpid()}")
            with suppress(OSError):
                if not Path(root, file).exists():
                    continue
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                self._home, self._file, self._line, self._unit = Path(root), group / file, line, unit
                return

    def seconds(self) -> float:
        if self._home is None:
            times = os.times()
            return times.user + times.system + times.children_user + times.children_system
        words = self._file.read_text().split()
        return int(words[words.index(self._line) + 1] if self._line else words[0]) * self._unit

    def close(self) -> None:
        """Leaves the group. One whose processes still run stays behind."""
        if self._home is not None:
            with suppress(OSError):
                (self._home / "cgroup.procs").write_text(str(os.getpid()))
                self._file.parent.rmdir()


class Measure:
    """In the process that runs tests: adds its CPU seconds to the report of a test.

    What fixtures of a file cost stands with the test before or after which they run.
    """

    def __init__(self) -> None:
        self._meter = Meter()
        self._before = self._meter.seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if call.when == "teardown":
            now = self._meter.seconds()
            report.user_properties.append(("cpu_s", now - self._before))
            self._before = now
        return report

    def pytest_unconfigure(self) -> None:
        self._meter.close()


class Table:
    """In the process that reports: the costs by file, and the tests that took longest."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._cpu: dict[str, float] = defaultdict(float)
        self._wall: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._wall[report.nodeid] += report.duration
        self._cpu[report.nodeid] += dict(report.user_properties).get("cpu_s", 0.0) if report.when == "teardown" else 0.0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: dict[str, list[float]] = {}
        for test, cpu in self._cpu.items():
            file = files.setdefault(test.partition("::")[0], [0.0, 0.0])
            file[0] += cpu
            file[1] += self._wall[test]
        if self._target:
            costs = {name: round(cpu, 1) for name, (cpu, _) in sorted(files.items())}
            Path(self._target).write_text(json.dumps(costs, indent=0) + "\n")
        if not self._target and not os.environ.get("CI"):
            return
        write = terminalreporter.write_line
        terminalreporter.section("CPU seconds by file, child processes included (wall seconds beside it)")
        for name, (cpu, wall) in sorted(files.items(), key=lambda row: -row[1][0]):
            if cpu >= 1:
                write(f"{cpu:8.1f} {wall:8.1f}  {name}")
        cpu, wall = sum(self._cpu.values()), sum(self._wall.values())
        write(f"{cpu:8.1f} {wall:8.1f}  all {len(files)} files, {len(self._cpu)} tests")
        terminalreporter.section(f"the {SLOWEST} tests that took longest (wall seconds, CPU seconds)")
        for test in sorted(self._wall, key=lambda test: -self._wall[test])[:SLOWEST]:
            write(f"{self._wall[test]:8.1f} {self._cpu[test]:8.1f}  {test}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="write the CPU seconds of each file there, as JSON")


def register(config: pytest.Config) -> None:
    """Measures where tests run, and reports where reports arrive; without pytest-xdist that is one process."""
    worker = "PYTEST_XDIST_WORKER" in os.environ
    if worker or not (config.getoption("numprocesses", None) or config.getoption("forks")):
        config.pluginmanager.register(Measure())
    if not worker:
        config.pluginmanager.register(Table(config.getoption("costs")))


def costliest_first(items: list[pytest.Item]) -> None:
    """Sorts tests by the recorded cost of their file. An unknown file comes first: it might be long."""
    known: dict[str, float] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    items.sort(key=lambda item: -known.get(item.nodeid.partition("::")[0], 1e9))
