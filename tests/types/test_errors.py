"""Errors in a line keep their end, where a child says what it was."""

from __future__ import annotations

import pytest

from agentrl.commands.doctor import Diagnosis
from agentrl.tools.base import tool
from agentrl.types.errors import described


def test_the_line_of_a_long_error_keeps_its_beginning_and_its_end() -> None:
    trace = (
        "the program ended with exit code 1: Traceback "
        + "File somewhere, line 1, in deep " * 40
        + "ValueError: THE CAUSE"
    )
    line = described("ProgramFailed", trace, "/a.py:3 in run")
    assert line.startswith("ProgramFailed: the program ended with exit code 1")
    assert line.endswith("ValueError: THE CAUSE at /a.py:3 in run")
    assert len(line) < 340
    assert described("KeyError", "'tea'", "") == "KeyError: 'tea'"


def test_the_method_of_an_object_may_be_a_tool() -> None:
    class Game:
        def guess(self, n: int) -> str:
            """Guesses."""
            return str(n)

    marked = tool(Game().guess)
    assert marked.__agentrl_tool__  # type: ignore[attr-defined]
    assert marked(3) == "3"
    with pytest.raises(TypeError, match="call it from a function of your own"):
        tool(len)


def test_the_commands_of_doctor_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentrl import cli
    from agentrl.commands import doctor

    monkeypatch.setattr(
        doctor, "examine", lambda: [Diagnosis("[b]x", False, "missing", "pip install 'agentrl-framework[train]'")]
    )
    monkeypatch.setenv("COLUMNS", "200")
    cli.doctor()
    assert "pip install 'agentrl-framework[train]'" in capsys.readouterr().out
