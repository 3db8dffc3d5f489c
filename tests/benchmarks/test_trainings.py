"""Trainings of benchmarks: progress is read from what they say, and a failure shows its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from benchmarks.harness import Report
from benchmarks.trainings import TrainingFailed, run_training, steps_of

pytestmark = pytest.mark.slow

SETS = ["warm_start.steps=100", "train.iterations=3"]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """A program in the place of `agentrl train`. Returns the folder of its run."""

    def says(script: str) -> Path:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        RunDir.create(tmp_path / "run").close()
        return tmp_path / "run"

    return says


def reported(*, clock: list[float]) -> tuple[Report, list[str]]:
    lines: list[str] = []
    ticks = iter(clock)
    report = Report("toy", write=lines.append, clock=lambda: next(ticks))
    report.plan(steps_of("quickstart", SETS))
    return report, lines


def test_the_warm_start_counts_as_some_iterations(training: Callable[[str], Path]) -> None:
    run = training(
        "echo 'warm start (100)'; echo 'sft 100  loss 1'; for k in 1 2 3; do echo \"train $k  reward 0\"; done"
    )
    report, lines = reported(clock=[0.0, 12.0, 16.0, 20.0])
    run_training("quickstart", run, SETS, report)
    assert lines == [
        "toy: 12 of 14, 0:12, about 0:02 left (run: train 1)",
        "toy: 13 of 14, 0:16, about 0:01 left (run: train 2)",
        "toy: 14 of 14, 0:20, about 0:00 left (run: train 3)",
    ]


def test_a_training_that_was_done_before_is_all_its_steps(training: Callable[[str], Path]) -> None:
    report, lines = reported(clock=[0.0, 2.0])
    run_training("quickstart", training("echo 'the run is finished'"), SETS, report)
    assert lines == ["toy: 14 of 14, 0:02, about 0:00 left (run)"]


def test_a_training_that_fails_shows_what_it_said(training: Callable[[str], Path]) -> None:
    run = training("echo 'train 1  reward 0'; echo 'no such model' >&2; exit 3")
    with pytest.raises(TrainingFailed, match=r"run: exit code 3\ntrain 1  reward 0\nno such model"):
        run_training("quickstart", run, SETS)
