"""Runs whose invariants hold, as `agentrl check` verifies them, in the test's own process."""

from __future__ import annotations

from pathlib import Path

from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.api.run_dirs import require_whole
from agentrl.store.check import check


def assert_sound(run: Path | str) -> None:
    """Fails with the report, if an invariant does not hold."""
    report = check(run)
    assert report.ok, report.as_text()


def played(recipe: str | Path, n: int, script: str, out: Path, *overrides: str) -> Run:
    """The run of `agentrl rollout RECIPE --n N --script SCRIPT --out OUT --set OVERRIDE ...`: whole and sound."""
    run = rollout(recipe, n, script=script, overrides=overrides, out=out, reporters=())
    require_whole(out)
    assert_sound(out)
    return run
