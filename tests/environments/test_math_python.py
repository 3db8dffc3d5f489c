"""recipes/math-python: programs and formulas agree, the splits share no problem, and the sandbox runs the programs."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from tests.command import agentrl

RECIPE = Path(__file__).parents[2] / "recipes" / "math-python"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)


def printed(code: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {"__name__": "problem"})
    return said.getvalue().strip()


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_program_and_formula_agree(level: str) -> None:
    tasks = [*load("./task.py:problems")(n=60, level=level)]
    assert {task.data["level"] for task in tasks} == {level}
    assert [task.id for task in tasks if printed(task.data["code"]) != task.data["answer"]] == []


@pytest.mark.slow
def test_the_splits_share_no_problem() -> None:
    problems = load("./task.py:problems")
    train, held_out = ({str(task.instruction) for task in problems(n=400, held_out=side)} for side in (False, True))
    assert not train & held_out
    assert [task.id for task in problems(n=28)] == [task.id for task in problems(n=56)][:28]
    with pytest.raises(ValueError, match="no level 'tiny'"):
        next(problems(level="tiny"))


@pytest.mark.slow
def test_the_oracle_runs_programs_in_the_sandbox(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    for script, reward in (("oracle", 1.0), ("junk", 0.0)):
        agentrl("rollout", str(RECIPE), "--n", "14", "--script", script, "--out", script, cwd=tmp_path)
        with RunDir.read(tmp_path / script) as run:
            assert [row.reward for row in run.rows()] == [reward] * 14
