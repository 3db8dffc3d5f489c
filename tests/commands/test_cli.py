"""What `agentrl` takes before a command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agentrl
from agentrl import cli
from agentrl.api import train
from agentrl.types.errors import RankDied
from tests.command import agentrl as command
from tests.command import python


@pytest.mark.slow
def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert command("--version", cwd=tmp_path).stdout == f"agentrl {agentrl.__version__}\n"


@pytest.mark.slow
def test_a_shell_completes_commands_and_recipes(tmp_path: Path) -> None:
    # What --show-completion prints for the shell that it finds among its parents.
    shown = python("-m", "agentrl.cli", cwd=tmp_path, _AGENTRL_COMPLETE="source_bash").stdout
    assert "_AGENTRL_COMPLETE=complete_bash" in shown
    assert "complete -o default -F" in shown
    for typed, expected in (
        ("agentrl rescor", "rescore"),
        ("agentrl rollout quickst", "quickstart"),
        ("agentrl train negat", "negative-reinforcement"),
    ):
        asked = {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        assert python("-m", "agentrl.cli", cwd=tmp_path, **asked).stdout.split() == [expected]


def test_init_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli.app, ["init", "doors"]).stdout
    assert f"{Path('doors', 'recipe.yaml')}\n" in told
    assert told.endswith("agentrl env check doors\n  agentrl rollout doors --script oracle --n 4\n")
    listed = json.loads(CliRunner().invoke(cli.app, ["init", "gates", "--package", "--json"]).stdout)
    assert str(Path("gates", "pyproject.toml")) in listed["files"]


def test_simulate_takes_whole_numbers_as_factors() -> None:
    told = CliRunner().invoke(cli.app, ["simulate", "none.yaml", "--times", "1,x"])
    assert told.exit_code == 2
    assert "numbers with commas between, for example 1,8,64" in " ".join(told.output.replace("│", " ").split())


def test_a_training_whose_rank_died_is_started_again_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*args: object, **settings: object) -> None:
        raise RankDied("rank 1 ended", restarts=1)

    started: list[list[str]] = []
    monkeypatch.setattr(train, "train", dies)
    monkeypatch.setattr(cli, "restore_standard_output", lambda: None)
    monkeypatch.setattr(os, "execv", lambda program, arguments: started.append(arguments))
    monkeypatch.setattr(sys, "argv", ["agentrl", "train", "counting"])
    monkeypatch.delenv(cli.RESTARTS, raising=False)
    for _ in range(2):
        assert isinstance(CliRunner().invoke(cli.app, ["train", "counting"]).exception, RankDied)
    assert started == [[sys.executable, "-m", "agentrl.cli", "train", "counting"]]
    assert os.environ.pop(cli.RESTARTS) == "1"


@pytest.mark.parametrize("error", [OSError(13, "Permission denied", "runs/x"), OSError(28, "No space left on device")])
def test_errors_of_files_are_one_sentence(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**settings: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    expected = "error: runs/x: Permission denied\n" if error.filename else "error: the disk is full: "
    assert said.startswith(expected)
