"""`agentrl init`: what it writes passes `agentrl env check` as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.api.certify.check import check_environment
from agentrl.api.recipe_check import check as recipe_check
from agentrl.commands.init import KINDS, new_recipe
from agentrl.types.errors import RecipeError
from tests.command import agentrl


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    said = agentrl("init", "mine", "--like", "game", cwd=tmp_path).stdout
    assert "mine/recipe.yaml" in said
    agentrl("recipe", "check", "mine", cwd=tmp_path)
    assert "mine: certified; 4 tasks" in agentrl("env", "check", "mine", "--n", "4", cwd=tmp_path).stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "game"])
def test_what_is_written_is_certified(tmp_path: Path, kind: str) -> None:
    new_recipe("mine", kind, tmp_path)
    assert recipe_check(str(tmp_path / "mine"), []).name == "mine"
    certificate = check_environment(tmp_path / "mine", 1, out=tmp_path / "runs")
    assert (certificate.certified, certificate.tasks) == (True, 1), certificate


@pytest.mark.parametrize("kind", KINDS)
def test_the_splits_are_apart(tmp_path: Path, kind: str) -> None:
    from agentrl.config.loader import load_recipe
    from agentrl.curriculum.task_source import load_tasks

    new_recipe("mine", kind, tmp_path)
    recipe = load_recipe(str(tmp_path / "mine"))
    assert recipe.name == "mine"
    assert recipe.eval is not None
    assert recipe.eval.tasks is not None
    train, test = (load_tasks(each, recipe.base, 0).tasks for each in (recipe.tasks, recipe.eval.tasks))
    assert not {task.id for task in train} & {task.id for task in test}


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(RecipeError, match="did you mean 'game'"):
        new_recipe("other", "games", tmp_path)
    with pytest.raises(RecipeError, match="there is a .*mine already"):
        new_recipe("mine", "game", tmp_path)
    with pytest.raises(RecipeError, match="no name of a recipe"):
        new_recipe("../mine", "game", tmp_path)
