"""All benchmarks take part in `python -m benchmarks`, their declarations fit, and the docs call them rightly.

`python -m benchmarks --smoke` runs them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'agentrl-framework[train]'")

import benchmarks.__main__ as benchmarks
from benchmarks import page
from benchmarks.harness import ROOT, Benchmark, Report
from benchmarks.page import Outcome
from benchmarks.peers.venv import INSTALL_S, PEERS
from tests.benchmarks.test_harness import TOY, Speed

NAMES = benchmarks.modules()
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/*/*.md")]


@pytest.fixture
def parser_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], argparse.ArgumentParser]:
    """The parser of a benchmark's command line."""
    made: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(Benchmark, "run", lambda self, parser, measure: made.append(parser) or 0)

    def parser(name: str) -> argparse.ArgumentParser:
        assert importlib.import_module(f"benchmarks.{name}").main() == 0
        return made[-1]

    return parser


def test_what_is_no_benchmark_is_no_program() -> None:
    """A new module takes part as soon as it can be run."""
    assert {"sandbox", "async", "runner"} <= {*NAMES}
    for path in (ROOT / "benchmarks").glob("*.py"):
        assert path.stem in (*NAMES, "__main__") or "def main(" not in path.read_text(), (
            f'{path}: no `if __name__ == "__main__"`, so that `python -m benchmarks` does not find it'
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_declares_itself(name: str, parser_of: Callable[[str], argparse.ArgumentParser]) -> None:
    declared = benchmarks.declared(name)
    assert declared.name == name
    first = (declared.about or "").splitlines()[0]
    assert f": `python -m benchmarks.{name}" in first, "the docstring begins with the title and the command"
    assert declared.beside
    assert {*declared.peers} <= {*PEERS}
    parser = parser_of(name)
    known = {action.dest for action in parser._actions}
    assert {*declared.smoke} <= known, "`smoke` sets arguments of the command line"
    for arguments in declared.runs:
        parser.parse_args(shlex.split(arguments.format(commit="0123abc")))


def test_the_comparison_ends_within_the_hour() -> None:
    compared = [each for each in map(benchmarks.declared, NAMES) if each.kind == "compare"]
    assert all(each.minutes > 0 for each in compared)
    peers = {peer for each in compared for peer in each.peers}
    assert sum(each.minutes * len(each.runs) for each in compared) + len(peers) * INSTALL_S / 60 <= 60


def test_versions_of_peers_are_pinned() -> None:
    assert all("==" in package for packages in PEERS.values() for package in packages)


def test_the_table_of_the_docs_is_that_of_the_benchmarks() -> None:
    told = (ROOT / "docs" / "benchmarks.md").read_text()
    table = "\n".join(page.overview(map(benchmarks.declared, NAMES)))
    assert table in told, "paste what `python -m benchmarks` prints into docs/benchmarks.md"


def test_the_benchmark_that_the_docs_add_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "benchmarks.md").read_text(), re.DOTALL)
    (tmp_path / "sorting.py").write_text(code)
    monkeypatch.setattr("sys.argv", ["sorting.py", "--smoke"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / "sorting.py"), run_name="__main__")
    assert ended.value.code == 0
    assert '"ratios":[{"figure":"seconds","ours":"list.sort","other":"sorted"' in capsys.readouterr().out


def commands() -> Iterator[tuple[Path, str, str]]:
    """Every command in the docs that runs a benchmark: the page, the benchmark and its arguments."""
    for path in DOCS:
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        quoted = re.findall(r"`(?:\w+=\S+ )*python -m benchmarks\.([a-z_]+)([^`]*)`", text)
        blocks = re.findall(r"^    python -m benchmarks\.([a-z_]+)(.*?)(?:#.*)?$", text, re.MULTILINE)
        for name, arguments in [*quoted, *blocks]:
            yield path, name, " ".join(arguments.split())


def test_commands_of_the_docs_are_understood(parser_of: Callable[[str], argparse.ArgumentParser]) -> None:
    found = list(commands())
    assert len(found) > 20
    for path, name, arguments in found:
        assert name in NAMES, f"{path} names a benchmark that is not there: {name}"
        try:
            parser_of(name).parse_args(shlex.split(arguments))
        except SystemExit:
            pytest.fail(f"{path}: python -m benchmarks.{name} {arguments}")


def result(**changes: object) -> page.Result:
    report = Report("toy", smoke=True)
    report.row(Speed(arm="ours", ms=1.0))
    report.ratio("ms", ("ours", 1.0), ("bricks", 4.0))
    made = report.result()
    made.command = "python -m benchmarks.toy --size 3"
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def test_a_smoke_run_names_what_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {
        "credit": Outcome("credit", "--smoke", 1.0, result()),
        "mfu": Outcome("mfu", "--smoke", 1.0, None, "exit code 1\nTypeError: got an unexpected keyword argument"),
        "soak": Outcome("soak", "--smoke", 1.0, result(problems=["orphans left"])),
        "miniwob": Outcome("miniwob", "--smoke", 1.0, result(missing={"miniwob": "no Chromium: apt-get install it"})),
    }
    monkeypatch.setattr(benchmarks, "in_forks", lambda names, _: map(outcomes.__getitem__, names))
    for complete, failed in (([], {"mfu", "soak"}), (["--complete"], {"mfu", "soak", "miniwob"})):
        monkeypatch.setattr("sys.argv", ["benchmarks", "--smoke", *complete, *outcomes])
        assert benchmarks.main() == 1
        said = capsys.readouterr().out
        assert {*re.findall(r"FAILED: python -m benchmarks\.(\w+)", said)} == failed
        assert "TypeError: got an unexpected keyword argument" in said
        assert "not run: miniwob: no Chromium: apt-get install it" in said
    monkeypatch.setattr("sys.argv", ["benchmarks", "--smoke", "credit"])
    assert benchmarks.main() == 0


def test_what_one_does_not_need_of_its_time_the_next_ones_have(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    took = iter([5.0, 70.0, 60.0])

    def run(name: str, arguments: str, timeout_s: float) -> Outcome:
        given.append(timeout_s)
        return Outcome(name, arguments, next(took), result())

    monkeypatch.setattr(benchmarks, "run", run)
    toys = [replace(TOY, minutes=1), replace(TOY, minutes=1, runs=("--size 3", "--size 4"))]
    assert [each.arguments for each in benchmarks.in_turn(toys, spare=10.0)] == ["", "--size 3", "--size 4"]
    assert given == [70.0, 125.0, 115.0]


IN_FORKS = """
import sys
from benchmarks import __main__ as benchmarks
benchmarks.SMOKE_S = float(sys.argv[1])
for outcome in benchmarks.in_forks(sys.argv[2:], 2):
    print(outcome.name, *outcome.failures())
"""
"""A program of its own: this one may have used torch, whose threads do not survive in a fork."""


def failures(limit_s: float, *names: str) -> str:
    argv = [sys.executable, "-c", IN_FORKS, str(limit_s), *names]
    return subprocess.run(argv, cwd=benchmarks.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.slow
def test_a_smoke_run_that_fails_is_shown_with_what_it_said() -> None:
    said = failures(600, "no_such_one", "credit")
    assert "no_such_one exit code 1\n" in said
    assert "No module named benchmarks.no_such_one" in said
    assert "credit\n" in said


@pytest.mark.slow
def test_a_smoke_run_that_hangs_is_ended() -> None:
    assert failures(0, "soak") == "soak it did not end within 0 s\n"


@pytest.mark.slow
def test_a_benchmark_that_hangs_is_interrupted_and_ended(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, subprocess, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(600)\n"
        f"finally:\n    pathlib.Path({str(tmp_path / 'cleaned')!r}).touch()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert benchmarks.end(process, 0.0) is None
    assert (tmp_path / "cleaned").exists()
    assert process.stdout.read() == b"", "its child has ended, too, and closed the pipe"


def test_the_page_has_ratios_and_what_went_wrong() -> None:
    outcomes = [
        Outcome("toy", "--size 3", 61.0, result(missing={"bricks 2": "pip says | no"}, problems=["slow"])),
        Outcome("toy", "--size 4", 60.0, None, "it did not end within 60 s"),
    ]
    text = page.page(outcomes, [TOY])
    for line in (
        "| toy | bricks | 1:01 | slow; without bricks 2 |",
        "| toy | bricks | 1:00 | it did not end within 60 s |",
        "`python -m benchmarks.toy --size 4`:",
        "- Not run: bricks 2: pip says | no",
        "| ms | ours | 1 | bricks | 4 | 0.25 |",
    ):
        assert line in text.splitlines(), text
    assert re.search(r"- Machine: \d+ cores of .+, [\d.]+ GiB, Linux .+", text)
    assert re.search(r"- Versions: python [\d.]+, agentrl", text)
    assert re.search(
        r"^`python -m benchmarks.toy --size 3`: .+ UTC, \d+:\d\d, load [\d.]+ to [\d.]+$", text, re.MULTILINE
    )
