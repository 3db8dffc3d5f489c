"""`benchmarks.learning`: methods are compared seed by seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.learning import RECORDED, Arm, note, paired, recorded
from benchmarks.pairs import Record, interval


def runs(*successes: float) -> list[list[dict[str, float]]]:
    return [[{"success": success}, {"success": success}] for success in successes]


def test_the_interval_is_student_s_over_pairs() -> None:
    assert interval([0.1, 0.2, 0.3]) == pytest.approx((0.2, 4.303 * 0.1 / 3**0.5))
    assert interval([0.1]) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([0.6, 0.7, 0.65, 0.6], "better"),
        ([0.3, 0.2, 0.25, 0.3], "worse"),
        ([0.6, 0.4, 0.6, 0.4], "no difference seen"),
        ([0.9, 0.9, 0.9, 0.45], "no difference seen"),  # three of four are less than seven of eight
    ],
)
def test_better_needs_an_interval_and_pairs_that_agree(ours: list[float], verdict: str) -> None:
    assert paired("a", "b", {"a": runs(*ours), "b": runs(0.5, 0.5, 0.5, 0.5)}).verdict == verdict


def test_a_seed_whose_run_failed_is_no_pair() -> None:
    found = paired("a", "b", {"a": [[], *runs(0.6, 0.7)], "b": runs(0.5, 0.5, 0.5)})
    assert found.differences == pytest.approx([0.1, 0.2])
    assert found.won == 2


def test_a_recorded_run_is_found_by_its_settings_alone(tmp_path: Path) -> None:
    arm = Arm("GRPO", 0, ["seed=0", "credit={use: grpo}"])
    run = [dict.fromkeys(RECORDED, 0.25), dict.fromkeys(RECORDED, 0.5)]
    note(Record(tmp_path / "runs.jsonl"), arm, run)
    assert recorded(Record(tmp_path / "runs.jsonl"), arm) == run
    other = arm._replace(sets=[*arm.sets, "train.iterations=60"])
    assert recorded(Record(tmp_path / "runs.jsonl"), other) is None
    memory = Record(None)
    note(memory, arm, run)
    assert recorded(memory, arm) == run
