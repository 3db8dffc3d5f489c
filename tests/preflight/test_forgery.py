"""Training refuses a reward that the policy could forge, unless the recipe accepts that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.types.errors import RecipeError
from tests.counting import CODE, RECIPE

EXACT = "./task.py:exact"


def planned(folder: Path, **settings: Any) -> None:
    (folder / "task.py").write_text(CODE)
    recipe = f"{RECIPE}model: {{scratch: {{}}}}\ntrain: {{iterations: 1}}\n"
    kept = [line for line in recipe.splitlines() if not line.startswith("rewards:")]
    (folder / "recipe.yaml").write_text(
        "\n".join([*kept, f"rewards: {json.dumps({'code_tests': settings, 'exact': EXACT})}\n"])
    )
    plan(load_recipe(str(folder)))


@pytest.mark.parametrize(
    "settings", [{}, {"isolation": "none", "accept_forgery": True}, {"isolation": "none", "weight": 0}]
)
def test_a_reward_that_cannot_be_forged_or_may_be_is_trained_on(tmp_path: Path, settings: dict[str, Any]) -> None:
    planned(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"isolation": "none"}, r"rewards\.code_tests: code_tests can be forged[\s\S]*accept_forgery: true"),
        ({"accept_forgery": "maybe"}, r"accept_forgery"),
    ],
)
def test_a_reward_that_can_be_forged_is_not(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        planned(tmp_path, **settings)
