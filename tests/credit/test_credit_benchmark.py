"""The benchmark runs, and its row-by-row GiGPO agrees with ours. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from agentrl.credit.registry import ESTIMATORS


def test_the_last_line_is_json_with_every_estimator() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.credit", "--sizes", "16", "32", "--turns", "3", "--repeat", "1"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2], timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert set(verdict["ms"]) == set(ESTIMATORS.built_in)
    assert set(verdict["row_by_row_gigpo_ms"]) == {"16", "32"}
