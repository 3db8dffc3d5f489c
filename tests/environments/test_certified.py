"""`agentrl env check` passes for every environment: minutes each (`make test-envs`).

At least 50 tasks of each, or all of them. A certificate beside the recipe is of what the recipe is now.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.api.certify.certificate import environment_of, told
from agentrl.config.loader import load_recipe
from tests.command import agentrl

RECIPES = Path(__file__).parents[2] / "recipes"
HELD_OUT = ("--set", "tasks.args.held_out=true")
TEST = ("--set", "tasks.args.split=test")
CERTIFIED = {
    "agentdojo": 69, "agentdojo/attacked.yaml": 100, "alfworld": 50, "babyai": 50, "bfcl": 696,
    "bfcl/short.yaml": 164, "clinic": 50, "clinic/records.yaml": 50,
    "desktop-notes": 50, "docs-browse": 50, "games": 50, "games/self-play.yaml": 50,
    "grounding": 50, "kernel": 50, "lookup-llm": 50, "math-python": 50, "miniwob": 50, "mixed": 50,
    "picture-maze": 50, "puzzles": 50, "quickstart": 8, "scienceworld": 50, "search-qa": 50,
    "search-qa/fiction.yaml": 50, "self-play/scripted.yaml": 34, "sql-chinook": 50, "sql-spider": 50, "staged": 7,
    "swe-inject": 50, "swe-testbed": 18, "tau2/airline.yaml": 17, "tau2/retail.yaml": 69, "tau2/telecom.yaml": 74,
    "terminal": 50, "textworld": 50, "textworld-express": 50, "webshop": 50,
}  # fmt: skip
"""Tasks of each: 50 or more, or all that there are. Earlier selves need a training: `self-play` has a script."""
ELSE = {
    "agentdojo": (23, HELD_OUT), "bfcl": (99, HELD_OUT), "tau2/airline.yaml": (14, TEST),
    "tau2/retail.yaml": (38, TEST), "tau2/telecom.yaml": (40, TEST),
}  # fmt: skip
"""The split for evaluation of some, whole."""


@pytest.mark.timeout(3600)
@pytest.mark.family("envs")
@pytest.mark.parametrize(
    ("recipe", "n", "more"),
    [*((recipe, n, ()) for recipe, n in CERTIFIED.items()), *((recipe, *given) for recipe, given in ELSE.items())],
)
def test_the_environment_is_certified(tmp_path: Path, recipe: str, n: int, more: tuple[str, ...]) -> None:
    said = agentrl("env", "check", recipe, "--n", str(n), "--json", *more, cwd=tmp_path, ok=False, timeout=3500)
    found = json.loads(said.stdout)
    assert [finding for finding in found["findings"] if finding["state"] == "fail"] == []
    assert found["tasks"] == n


def test_certificates_beside_recipes_are_of_what_these_are_now() -> None:
    """`agentrl env check recipes/NAME --store` writes a new one."""
    said = {recipe: told(load_recipe(str(RECIPES / recipe))) for recipe in CERTIFIED}
    wrong = {
        recipe: found
        for recipe, found in said.items()
        if found is None or found[:9] != "certified" or "before" in found
    }
    assert wrong == {}


def test_a_key_with_its_default_is_no_other_environment() -> None:
    plain = load_recipe("quickstart")
    written = load_recipe("quickstart", ["limits.score_s=300", "tasks.shuffle=false"])
    other = load_recipe("quickstart", ["limits.score_s=301"])
    assert environment_of(plain) == environment_of(written) != environment_of(other)
