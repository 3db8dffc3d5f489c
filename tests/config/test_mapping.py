"""A recipe may be a mapping, as a notebook has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl import rollout
from agentrl.types.errors import RecipeError

CODE = """
from agentrl import Say
def oracle(task, rng):
    yield Say("b")
"""


def test_a_recipe_may_be_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text('{"q": "a", "answer": "b"}\n')
    Path("mine.py").write_text(CODE)
    recipe = {
        "name": "x", "tasks": {"jsonl": "./t.jsonl", "prompt": "{q}"}, "rewards": {"exact_match": {}},
        "scripts": {"oracle": "./mine.py:oracle"},
    }  # fmt: skip
    run = rollout(recipe, 1, script="oracle", overrides={"seed": 3}, reporters=())
    assert [episode.reward for episode in run.whole_episodes()] == [1.0]
    assert "seed" not in recipe
    with pytest.raises(RecipeError, match="rewrads"):
        rollout({**recipe, "rewrads": {}}, 1, script="oracle", reporters=())
