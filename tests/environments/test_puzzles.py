"""recipes/puzzles: graders that can be trusted, answers that are never run, and several tries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.sandbox.helper import Helper
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import TaskError
from tests.command import agentrl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.family("environments"),
    pytest.mark.skipif(util.find_spec("reasoning_gym") is None, reason="pip install reasoning-gym==0.1.25"),
]

RECIPE = Path(__file__).parents[2] / "recipes" / "puzzles"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
EASY = ("--set", "tasks.args.easy=true")


def played(tmp_path: Path, script: str, n: int, *more: str) -> list[tuple[float | None, int]]:
    agentrl("rollout", str(RECIPE), "--n", str(n), "--script", script, "--out", script, *EASY, *more, cwd=tmp_path)
    with RunDir.read(tmp_path / script) as run:
        return [(row.reward, row.turns) for row in run.rows()]


def test_the_answers_of_the_package_are_right_and_junk_is_not(tmp_path: Path) -> None:
    assert played(tmp_path, "oracle", 12) == [(1.0, 1)] * 12
    # Some graders of the package give .01 for an answer of the right form.
    assert all(reward is not None and reward <= 0.01 for reward, _ in played(tmp_path, "junk", 12))


def test_a_wrong_answer_may_be_mended(tmp_path: Path) -> None:
    three = ("--set", "tools=[{./task.py:Table: {tries: 3}}]")
    assert played(tmp_path, "junk", 4, *three) == [(0.0, 3)] * 4


def test_a_blocked_kind_is_refused_with_the_reason() -> None:
    puzzles = load("./task.py:puzzles")
    with pytest.raises(TaskError, match="game_of_life_halting.*nonsense"):
        next(puzzles(kinds=["game_of_life_halting"]))
    with pytest.raises(TaskError, match="no such generator"):
        next(puzzles(kinds=["riddles"]))


def test_the_splits_share_no_puzzle() -> None:
    puzzles = load("./task.py:puzzles")
    train, held_out = ({str(task.instruction) for task in puzzles(n=60, easy=True, held_out=h)} for h in (False, True))
    assert not train & held_out
    assert len({task.data["puzzle"]["kind"] for task in puzzles(n=85)}) == 85


async def test_an_answer_is_never_run(tmp_path: Path) -> None:
    helper, grade = Helper(str(RECIPE / "grade.py"), memory_mb=3072), load("./grade.py:score")
    (task,) = load("./task.py:puzzles")(n=1, kinds=["spiral_matrix"])
    asked = [task.data["puzzle"][name] for name in ("kind", "seed", "number", "asked")]
    mark = tmp_path / "mark"
    attack = f"[__import__('pathlib').Path({str(mark)!r}).touch()]"
    assert await helper.ask(grade, *asked, attack, cpu_s=60.0) == 0.0
    assert not mark.exists()
    assert await helper.ask(grade, *asked, task.data["answer"], cpu_s=60.0) == 1.0
    helper.stop()
