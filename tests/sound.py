"""The invariants of a run directory, as `agentrl check` verifies them, in the test's own process."""

from __future__ import annotations

from pathlib import Path

from agentrl.store.check import check


def assert_sound(run: Path | str) -> None:
    """Fails with the report, if an invariant does not hold."""
    report = check(run)
    assert report.ok, report.as_text()
