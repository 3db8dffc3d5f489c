"""Which tests run: families only where they are asked for, and in `make check` none that starts a process.

Marks:

- `family(NAME)`: needs an installation of its own (tests/families.toml), or is run by hand: with `--family NAME`.
- `slow`: starts a process, a browser or a container, or trains; `make check` leaves it out.

What is skipped is listed at the end with its reason, which names the command that installs what is missing. With CI set
in the environment a skipped test is an error, unless it needs other hardware.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

MARKS = ("family(name): runs with `--family name` only", "slow: starts a process or trains; not in `make check`")
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Events of the interpreter's audit that start a process."""

HARDWARE = ("needs a GPU", "needs a processor")
"""Prefixes of the reasons with which a test may be skipped in CI, too: no command installs what is missing."""

SLOW = r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b"
ALLOWED = {"git", "uname", "fc-list"}
"""Programs that every test may start: a run asks git for the commit, clients of servers ask for the processor, and
matplotlib asks for the fonts when a user first imports it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--family", metavar="NAME", help="run the tests of this family, and no others")
    parser.addoption("--quick", action="store_true", help="fail tests that start a process")


def register(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    if config.getoption("quick"):
        config.pluginmanager.register(NoProcesses())
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Skipped())


def of_family(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves in `items` the tests of the family that was asked for; without one, those of none."""
    wanted = config.getoption("family")
    kept, others = [], []
    for item in items:
        families = {mark.args[0] for mark in item.iter_markers("family")}
        (kept if (wanted in families if wanted else not families) else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def is_slow(path: Path) -> bool:
    """Returns True if a file marks all its tests as slow. Such a file need not be imported."""
    return path.suffix == ".py" and re.search(SLOW, path.read_text(), re.M) is not None


class NoProcesses:
    """Fails a test during which this process starts another one.

    The start itself is let through: an exception there would end in whatever thread or callback asked for it.
    """

    def __init__(self) -> None:
        self._started = ""
        sys.addaudithook(self._audit)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if is_slow(collection_path) else None

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS and arguments[:1] not in [(program,) for program in ALLOWED]:
            self._started = self._started or f"{event} {arguments[:2]}"[:200]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._started = ""
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        result = yield
        if self._started:
            pytest.fail(f"it starts a process ({self._started}): mark it `slow`", pytrace=False)
        return result


class Skipped:
    """Lists the tests that were skipped, by reason. In CI they are an error."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()
        self._example: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            self._reasons[reason] += 1
            self._example.setdefault(reason, report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if any(self._is_error(reason) for reason in self._reasons) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @staticmethod
    def _is_error(reason: str) -> bool:
        return bool(os.environ.get("CI")) and not reason.startswith(HARDWARE)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._reasons:
            terminalreporter.section("skipped: " + ("an error in CI" if os.environ.get("CI") else "what is missing"))
            for reason, count in self._reasons.most_common():
                kind = "ERROR skipped" if self._is_error(reason) else ""  # .ci/run lists the lines that open so
                terminalreporter.write_line(f"{kind}{count:5}  {reason}  ({self._example[reason]})")
