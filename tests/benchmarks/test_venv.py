"""Virtual environments of peers: what cannot be installed is not tried again for every benchmark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import Missing
from benchmarks.peers import venv


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The commands that were run, in the order of what pip will answer: an exit code, or an exception."""
    answers: list[Any] = []

    def run(argv: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        assert settings["timeout"] > 0
        if argv[-2] == "venv":
            Path(argv[-1]).mkdir()
            return subprocess.CompletedProcess(argv, 0, "", "")
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(argv, answer, "", "no such version" * bool(answer))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(venv, "VENVS", tmp_path)
    monkeypatch.setitem(venv.PEERS, "bricks", ("bricks==1.0",))
    return answers


def test_what_failed_is_tried_again_after_a_while(ran: list[Any], tmp_path: Path) -> None:
    ran.append(1)
    for _ in range(2):  # the second time without pip
        with pytest.raises(Missing, match="bricks==1.0 cannot be installed: exit code 1 no such version"):
            venv.python_of("bricks")
    (failed,) = tmp_path.glob("*/failed")
    os.utime(failed, (1.0, 1.0))
    ran.append(0)
    python = venv.python_of("bricks")
    assert venv.python_of("bricks") == python, "nothing is installed twice"
    assert ran == []


def test_an_installation_that_hangs_is_given_up(ran: list[Any]) -> None:
    ran.append(subprocess.TimeoutExpired("pip", 1.0))
    with pytest.raises(Missing, match="it took more than 180 s"):
        venv.python_of("bricks")


def test_other_versions_are_another_environment(ran: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ran += [0, 0]
    before = venv.python_of("bricks")
    monkeypatch.setitem(venv.PEERS, "bricks", ("bricks==2.0",))
    assert venv.python_of("bricks") != before
    assert ran == []
