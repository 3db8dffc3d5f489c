"""recipes/search-qa/fiction.yaml: its questions are answered by searching, and by nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from tests.command import agentrl

RECIPE = Path(__file__).parents[4] / "recipes" / "search-qa"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)


def played(tmp_path: Path, script: str, n: int) -> list[float | None]:
    out = tmp_path / script
    agentrl("rollout", str(RECIPE / "fiction.yaml"), "--n", str(n), "--script", script, "--out", str(out), cwd=tmp_path)
    with RunDir.read(out) as run:
        return [row.reward for row in run.rows()]


@pytest.mark.slow
def test_the_oracle_reads_every_answer(tmp_path: Path) -> None:
    assert played(tmp_path, "oracle", 72) == [1.0] * 72
    assert set(played(tmp_path, "random", 72)) == {0.0}


def test_the_splits_share_no_question() -> None:
    questions = load("./fiction.py:questions")
    train, held_out = ({task.id for task in questions(n=500, held_out=side)} for side in (False, True))
    assert (len(train), len(held_out)) == (500, 500)
    assert not train & held_out
    assert [task.id for task in questions(n=24)] == [task.id for task in questions(n=48)][:24]
    assert {len(task.data["hops"]) for task in questions(n=40, hops=1)} == {1}


def test_a_name_has_one_article_and_the_article_says_its_facts() -> None:
    world = load("./fiction.py:world")()
    texts = {document.title: document.text for document in world.documents}
    assert len(texts) == len(world.documents)
    assert all(value in texts[about] for facts in world.facts.values() for about, value in facts.items())
    assert load("./fiction.py:world")(8).documents != world.documents
