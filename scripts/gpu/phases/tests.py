"""The tests that run on a GPU where there is one (`test_on_a_gpu*.py`); without one, their part for CPUs."""

from __future__ import annotations

from collections import Counter

import pytest

from scripts.gpu.phase import Phase
from scripts.gpu.runner import ROOT

CHOSEN = {"cuda": "not cpu", "cpu": "attention_sees or (plain_pass and float32)"}
"""By device: which of the tests. Beside a GPU only those that use it, without one a few."""


class Counted:
    """Counts how tests ended, and names those that failed."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.ended[report.outcome] += 1
        if report.outcome == "failed":
            self.failed.append(report.nodeid)


def main() -> None:
    phase, counted = Phase.from_command_line(__doc__), Counted()
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_on_a_gpu*.py"))
    options = ["-q", "-rs", "--tb=short", "-p", "no:cacheprovider", "-k", CHOSEN[phase.device]]
    code = pytest.main([*options, *files], plugins=[counted])
    for outcome in ("passed", "failed", "skipped"):
        phase.figure(outcome, counted.ended[outcome])
    if counted.failed:
        phase.figure("which failed", counted.failed)
    phase.check(code == pytest.ExitCode.OK, f"pytest ended with {code!r}")
    phase.check(phase.device == "cpu" or not counted.ended["skipped"], "tests were skipped beside a GPU")
    phase.end()


if __name__ == "__main__":
    main()
