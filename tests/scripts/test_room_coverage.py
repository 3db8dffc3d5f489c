"""Coverage of rooms: lines that run in other processes, the tests of each line, and what was lost."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from scripts.copies import ROOT
from scripts.mutants.mutations import mutations
from scripts.mutants.selection import Choice, Suite, choose
from scripts.room_coverage import __main__ as room_coverage
from tests.scripts.conftest import commit

PARTS = ("call", "forked", "server", "spawned", "execed", "stopped", "bare", "module", "session", "setup")
MODULE = (
    "\n\n".join(f"def {part}():\n    return '{part}'" for part in PARTS) + "\n\n\ndef never():\n    return 'never'\n"
)
TESTS = """
import os, signal, subprocess, sys
import pytest
from agentrl.low import parts

RUN = "from agentrl.low import parts; parts."

@pytest.fixture(scope="module")
def of_module():
    return parts.module()

@pytest.fixture(scope="session")
def of_session():
    return parts.session()

@pytest.fixture
def own():
    return parts.setup()

def fork(work):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def test_call(of_module, own):
    assert parts.call()

def test_fork(of_module, of_session):
    fork(parts.forked)

def test_fork_of_a_server():
    def work():
        os.environ["AGENTRL_TEST_CONTEXT"] = "tests/low/test_parts.py::test_that_asked"
        fork(parts.server)
    fork(work)

def test_spawned():
    subprocess.run([sys.executable, "-c", RUN + "spawned()"], check=True)

def test_execed():
    code = RUN + "execed(); import os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_stopped():
    code = RUN + "stopped(); print(flush=True); import time; time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        running.terminate()
    assert running.returncode == -signal.SIGTERM

def test_without_variables():
    subprocess.run([sys.executable, "-c", RUN + "bare()"], check=True, env={})

def test_code_without_a_file():
    exec(compile("x = 1", parts.__file__.replace("parts", "made"), "exec"))
"""
FILE = "tests/low/test_parts.py"
EXPECTED = {
    "call": f"{FILE}::test_call",
    "forked": f"{FILE}::test_fork",
    "server": f"{FILE}::test_that_asked",
    "spawned": f"{FILE}::test_spawned",
    "execed": f"{FILE}::test_execed",
    "stopped": f"{FILE}::test_stopped",
    "bare": None,
    "module": FILE,
    "session": FILE,
    "setup": f"{FILE}::test_call",
}
"""The context of each part; no context: only that it ran is known."""


@pytest.fixture
def measured(house: Path, venv: Path, tmp_path: Path) -> Path:
    """The database of a run of the house with `TESTS`; the JSON lies beside it."""
    pytest.importorskip("coverage", reason="the package coverage is missing: pip install coverage")
    (house / "agentrl/low/parts.py").write_text(MODULE)
    (house / FILE).write_text(TESTS)
    commit(house)
    given = argparse.Namespace(
        out=tmp_path / "out.json",
        data=tmp_path / "out.data",
        add=[],
        checkout=house,
        venv=venv,
        work=tmp_path / "work",
        pytest=["-q", "-n1", FILE],
    )
    assert room_coverage.measure(given) == 0
    return tmp_path / "out.data"


def covered_lines(path: Path) -> list[str]:
    """The text of the lines of `MODULE` that ran."""
    source = MODULE.split("\n")
    return [
        source[number - 1].strip()
        for number in json.loads(path.read_text())["files"]["agentrl/low/parts.py"]["covered"]
    ]


@pytest.mark.slow
def test_lines_of_every_process_count_with_their_tests(measured: Path, house: Path) -> None:
    found = json.loads(measured.with_suffix(".json").read_text())
    ran = [line for part in PARTS for line in (f"def {part}():", f"return '{part}'")]
    assert covered_lines(measured.with_suffix(".json")) == [*ran, "def never():"]
    assert found["rooms"]["low"] == {"lines": 26, "covered": 21}
    assert found["rooms"]["high"] == {"lines": 1, "covered": 0}

    chosen: dict[str, Choice] = defaultdict(lambda: Choice((), None))
    lines = MODULE.replace("return", "print(0);").encode()
    for one in mutations("agentrl/low/parts.py", lines):
        chosen[one.key.scope] = choose(Suite(house, {}), one, measured)
    assert {part: one.only and {*one.only} for part, one in chosen.items() if part != "never"} == {
        part: context and {context} for part, context in EXPECTED.items()
    }
    assert chosen["call"].files == (FILE,)
    assert chosen["never"].only is None


@pytest.mark.slow
def test_a_run_that_is_stopped_writes_what_it_has(house: Path, venv: Path, tmp_path: Path) -> None:
    pytest.importorskip("coverage", reason="the package coverage is missing: pip install coverage")
    (house / "agentrl/low/parts.py").write_text(MODULE)
    os.mkfifo(told := tmp_path / "told")
    (house / FILE).write_text(
        "import time\nfrom agentrl.low import parts\n\n\ndef test_first():\n    assert parts.call()\n\n\n"
        f"def test_that_hangs():\n    open({str(told)!r}, 'w').close()\n    time.sleep(1000)\n"
    )
    commit(house)
    out = tmp_path / "out.json"
    options = ["--checkout", house, "--venv", venv, "--work", tmp_path / "work", "--", "-q", FILE]
    command = [sys.executable, "-m", "scripts.room_coverage", "run", out, *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as running:
        told.read_text()
        running.terminate()
    assert running.returncode == room_coverage.INTERRUPTED
    assert [line for line in covered_lines(out) if line.startswith("return")] == ["return 'call'"]


def result(of: str, covered: list[int], lines: int = 4) -> dict[str, Any]:
    file = {"lines": [*range(1, lines + 1)], "covered": covered}
    sums = {"lines": lines, "covered": len(covered)}
    return {"commit": of, "rooms": {"low": sums}, "files": {"agentrl/low/a.py": file}}


@pytest.mark.parametrize(("now", "code"), [([1, 2, 3], 0), ([1, 2, 4], 0), ([1, 2], 1)])
def test_a_room_must_not_be_lower(
    now: list[int], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, covered in (("old", [1, 2, 3]), ("new", now)):
        (tmp_path / name).write_text(json.dumps(result("same", covered)))
    given = argparse.Namespace(old=tmp_path / "old", new=tmp_path / "new", repository=tmp_path)
    assert room_coverage.compared(given) == code
    said = capsys.readouterr()
    assert ("no longer run: agentrl/low/a.py:3" in said.out) == (3 not in now)
    assert ("lower than before: low" in said.err) == bool(code)


def test_lost_lines_are_found_where_they_stand_now(house: Path) -> None:
    commits = []
    for text in ("a\nb\nc\nd\n", "new\na\nb\nchanged\nd\n"):
        (house / "agentrl/low/a.py").write_text(text)
        commits.append(commit(house))
    old, new = result(commits[0], [1, 2, 3, 4]), result(commits[1], [1, 3], lines=5)
    assert room_coverage.lost_lines("agentrl/low/a.py", old, new, house) == [2, 5]
