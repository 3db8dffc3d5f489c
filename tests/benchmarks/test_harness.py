"""The harness of benchmarks: smoke runs, progress, and a last line that fits its schema."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import Benchmark, Missing, Report, Row, read


class Speed(Row):
    arm: str
    ms: float


class Won(Row):
    by_iteration: dict[int, float]


TOY = Benchmark(
    "benchmarks/toy.py",
    "Speed of toys: `python -m benchmarks.toy`.\n",
    rows=Speed | Won,
    kind="compare",
    beside="bricks",
    smoke={"size": 1},
)

Measure = Callable[[argparse.Namespace, Report], None]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Runs a benchmark with a command line. Returns its exit code and its last line."""

    def run(measure: Measure, *arguments: str) -> tuple[int, Any]:
        monkeypatch.setattr("sys.argv", ["toy.py", *arguments])
        parser = TOY.parser()
        parser.add_argument("--size", type=int, default=9)
        parser.add_argument("--out", type=Path, default=Path("runs/toy"))
        code = TOY.run(parser, measure)
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def one_row(given: argparse.Namespace, report: Report) -> None:
    report.row(Speed(arm="ours", ms=given.size))


def test_a_smoke_run_has_the_smallest_sizes_and_what_is_given(toy: Any) -> None:
    assert [toy(one_row, *given)[1]["rows"][0]["ms"] for given in ([], ["--smoke"], ["--smoke", "--size", "4"])] == [
        9, 1, 4,
    ]  # fmt: skip


def test_a_smoke_run_does_not_go_on_where_another_one_stopped(toy: Any) -> None:
    seen: list[Path] = []

    def measure(given: argparse.Namespace, report: Report) -> None:
        one_row(given, report)
        seen.append(given.out)
        assert list(given.out.iterdir()) == []
        (given.out / "run.json").touch()

    for _ in range(2):
        toy(measure, "--smoke")
    assert not any(path.exists() for path in seen)


def test_a_size_that_the_command_line_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["toy.py", "--smoke"])
    with pytest.raises(AssertionError, match=r"benchmarks/toy.py: `smoke` names \{'size'\}"):
        TOY.run(TOY.parser(), one_row)


def test_the_last_line_says_where_and_with_what(toy: Any) -> None:
    code, line = toy(one_row, "--size", "3")
    assert code == 0
    assert line["command"] == "python -m benchmarks.toy --size 3"
    assert {"python", "agentrl", "numpy"} <= line["versions"].keys()
    assert line["machine"]["cores"] >= 1
    assert len(line["machine"]["load"]) == 2
    assert read(json.dumps(line), TOY).rows == [Speed(arm="ours", ms=3.0)]


@pytest.mark.parametrize(
    ("row", "where"),
    [
        (Speed(arm="ours", ms=math.nan), r"Expected `float`, got `null` - at `\$.rows\[0\].ms`"),
        (Speed(arm=None, ms=1.0), r"Expected `str`, got `null` - at `\$.rows\[0\].arm`"),  # type: ignore[arg-type]
        (Won(by_iteration={"first": 0.5}), "Expected `int`"),  # type: ignore[dict-item]
    ],
)
def test_a_row_that_does_not_fit_is_refused(toy: Any, row: Row, where: str) -> None:
    with pytest.raises(ValueError, match=rf"the last line of benchmarks.toy is no result: {where}"):
        toy(lambda given, report: report.row(row))


def test_what_is_no_result_of_this_benchmark_is_refused(toy: Any) -> None:
    _, line = toy(one_row)
    for changed, why in (
        ({"benchmark": "other"}, "it is of other"),
        ({"rows": []}, "it has no rows, and nothing is missing"),
        ({"seconds": "3"}, "Expected `float`"),
        ({"more": 1}, "unknown field `more`"),
    ):
        with pytest.raises(ValueError, match=why):
            read(json.dumps({**line, **changed}), TOY)
    with pytest.raises(ValueError, match="no result"):
        read("Traceback", TOY)


def test_what_cannot_run_here_is_said(toy: Any) -> None:
    def measure(given: argparse.Namespace, report: Report) -> None:
        raise Missing("no bricks: pip install bricks")

    assert toy(measure)[0] == 0
    assert toy(measure)[1]["missing"] == {"toy": "no bricks: pip install bricks"}


def test_a_problem_is_told_by_the_exit_code(toy: Any) -> None:
    def measure(given: argparse.Namespace, report: Report) -> None:
        one_row(given, report)
        report.budget("ms of a toy", 3.0, at_most=2.0)

    code, line = toy(measure)
    assert (code, line["problems"]) == (1, ["ms of a toy: 3, more than 2"])
    assert toy(measure, "--smoke")[0] == 0, "a smoke run is too small for a budget"


def test_a_ratio_is_of_ours_to_the_other(toy: Any) -> None:
    def measure(given: argparse.Namespace, report: Report) -> None:
        one_row(given, report)
        report.ratio("ms", ("ours", 1.0), ("bricks", 4.0))
        report.ratio("ms", ("ours", 1.0), ("nothing", 0.0))

    (found,) = toy(measure)[1]["ratios"]
    assert found == {
        "figure": "ms", "ours": "ours", "other": "bricks", "our_value": 1.0, "other_value": 4.0, "ratio": 0.25,
    }  # fmt: skip


def test_progress_estimates_the_rest_at_the_rate_so_far() -> None:
    lines: list[str] = []
    clock = iter([0.0, 20.0, 21.0, 40.0, 100.0])
    report = Report("toy", write=lines.append, clock=lambda: next(clock))
    report.plan(10)
    for steps in (1, 1, 2, 6):
        report.done("steps", steps)
    assert lines == [
        "toy: 1 of 10, 0:20, about 3:00 left (steps)",
        "toy: 4 of 10, 0:40, about 1:00 left (steps)",  # the second came too soon after the first
        "toy: 10 of 10, 1:40, about 0:00 left (steps)",
    ]
