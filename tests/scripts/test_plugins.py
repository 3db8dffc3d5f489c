"""Families, `make check`, skipped tests and costs, each in a pytest of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
from tests.plugins import costs, forks, selection

def pytest_addoption(parser):
    costs.pytest_addoption(parser)
    selection.pytest_addoption(parser)
    forks.pytest_addoption(parser)

def pytest_configure(config):
    costs.register(config)
    selection.register(config)
    forks.register(config)

def pytest_collection_modifyitems(config, items):
    selection.of_family(config, items)
    costs.costliest_first(items)
"""
TESTS = """
import os, subprocess, sys
import pytest

def test_plain(): pass

@pytest.mark.family("vllm")
def test_of_vllm(): pass

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.family("envs"))])
def test_some(n): pass

def test_starts(): subprocess.run([sys.executable, "-c", "sum(range(10**7))"])

def test_forks():
    child = os.fork()
    if not child: os._exit(0)
    os.waitpid(child, 0)

def test_asks_git(): subprocess.run(["git", "--version"])

@pytest.mark.skip(reason="slugs are missing: make slugs")
def test_skipped(): pass
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TESTS)
    return pytester


def passed(result: pytest.RunResult) -> dict[str, int]:
    return result.parseoutcomes()


@pytest.mark.slow
def test_a_family_runs_only_where_it_is_asked_for(inner: pytest.Pytester) -> None:
    assert passed(inner.runpytest_subprocess()) == {"passed": 5, "skipped": 1, "deselected": 2}
    assert passed(inner.runpytest_subprocess("--family=vllm")) == {"passed": 1, "deselected": 7}
    assert passed(inner.runpytest_subprocess("--family=envs")) == {"passed": 1, "deselected": 7}


@pytest.mark.slow
def test_the_inner_loop_refuses_a_process(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_slow="import pytest\n\npytestmark = pytest.mark.slow\n\nraise SystemExit('imported')")
    result = inner.runpytest_subprocess("--quick")
    assert passed(result) == {"passed": 3, "failed": 2, "skipped": 1, "deselected": 2}
    result.stdout.fnmatch_lines(
        ["*it starts a process (subprocess.Popen*mark it `slow`", "*it starts a process (os.fork*"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_skipped_is_named_and_is_an_error_in_ci(
    workers: int, inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = inner.runpytest_subprocess(f"-n{workers}")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*skipped: what is missing*", "*1  slugs are missing: make slugs*test_skipped*"])
    monkeypatch.setenv("CI", "true")
    result = inner.runpytest_subprocess(f"-n{workers}")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*skipped: an error in CI*", "ERROR skipped*1  slugs are missing*"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_costs_count_the_processes_that_a_test_started(workers: int, inner: pytest.Pytester) -> None:
    inner.makepyfile(test_idle="def test_idle(): pass")
    result = inner.runpytest_subprocess(f"-n{workers}", "--costs=costs.json")
    costs = json.loads((inner.path / "costs.json").read_text())
    assert costs["test_it.py"] > costs["test_idle.py"]
    result.stdout.fnmatch_lines(["*CPU seconds by file*", "*all 2 files, 7 tests", "*tests that took longest*"])


IN_FORKS = """
import os, pathlib, signal
import pytest

@pytest.fixture(scope="module")
def of_file(): return os.getpid()

@pytest.mark.parametrize("n", range(40))
def test_many(n, of_file, capsys):
    print(n)
    assert of_file == os.getpid()
    assert capsys.readouterr().out == f"{n}\\n"

def test_fails():
    print("said before")
    assert 1 == 2

@pytest.mark.skip(reason="slugs are missing: make slugs")
def test_skipped(): pass
"""


@pytest.mark.slow
def test_forks_report_all_that_they_ran(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_it=IN_FORKS, test_other=IN_FORKS, test_more=IN_FORKS)
    result = inner.runpytest_subprocess("--forks=2", "-rs")
    assert passed(result) == {"passed": 120, "failed": 3, "skipped": 3}
    result.stdout.fnmatch_lines(["*assert 1 == 2", "*said before*", "*3  slugs are missing: make slugs*"])


@pytest.mark.slow
def test_a_fork_that_dies_is_an_error_with_the_test_it_had_come_to(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_it="import os\n\ndef test_a(): pass\n\ndef test_dies(): os._exit(7)\n")
    result = inner.runpytest_subprocess("--forks=2")
    assert result.ret != 0
    assert "a fork ended with 7; it had come to test_it.py::test_dies" in result.stdout.str() + result.stderr.str()
