"""What `agentrl` takes before a command."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
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
