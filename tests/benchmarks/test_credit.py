"""`benchmarks.credit`: every estimator is measured, and its row-by-row GiGPO agrees with ours. No time is asserted."""

from __future__ import annotations

import argparse

from agentrl.estimators.registry import ESTIMATORS
from benchmarks import credit
from benchmarks.harness import Report


def test_every_estimator_is_measured() -> None:
    report = Report("credit", smoke=True)
    credit.measure(argparse.Namespace(sizes=[16, 32], turns=3, repeat=1, naive_up_to=32), report)
    found = {row.estimator: row.ms.keys() for row in report.rows if isinstance(row, credit.Estimator)}
    assert found == {name: {16, 32} for name in [*ESTIMATORS.built_in, credit.REMEMBERING, credit.ROW_BY_ROW]}
    assert {(ratio.ours, ratio.other) for ratio in report.ratios} == {("gigpo", credit.ROW_BY_ROW)}
