"""`agentrl init`: what it writes passes `agentrl env check` as it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from agentrl.api.certify.check import check_environment
from agentrl.api.recipe_check import check as recipe_check
from agentrl.commands.init import KINDS, new_package, new_recipe
from agentrl.registry.installed import group_of
from agentrl.registry.kinds import KINDS as REGISTRIES
from agentrl.registry.kinds import registry_of
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError
from tests.command import agentrl, commands, sets
from tests.sound import assert_sound


@pytest.mark.slow
@pytest.mark.family("packages")
def test_the_commands(tmp_path: Path) -> None:
    said = agentrl("init", "mine", "--like", "game", cwd=tmp_path).stdout
    assert "mine/recipe.yaml" in said
    agentrl("recipe", "check", "mine", cwd=tmp_path)
    checked = agentrl("env", "check", "mine", "--n", "4", cwd=tmp_path).stdout
    assert "mine: certified; 4 tasks" in checked
    assert "runs in runs/mine-env-check/version-1: " in checked


def test_the_help_lists_every_kind() -> None:
    (like,) = (option for option in commands()["init"].params if option.name == "like")
    assert re.findall(r"(\w+)(?:: [^;]+)?[;.]", like.help) == [*KINDS]


SMALL = sets(
    "warm_start.episodes=4",
    "warm_start.steps=4",
    "warm_start.batch=4",
    "train={iterations: 2, groups: 2, group_size: 2, minibatch: 4}",
    "eval.episodes=2",
)


@pytest.mark.slow
@pytest.mark.family("packages")
@pytest.mark.parametrize("kind", ["dialogue", "picture", "program", "roles"])
def test_a_kind_with_a_tiny_model_trains(tmp_path: Path, kind: str) -> None:
    """Two iterations with the model of the recipe, and the oracle as the demonstrator."""
    new_recipe("mine", kind, tmp_path)
    agentrl("train", "mine", *SMALL, cwd=tmp_path)
    assert_sound(tmp_path / "runs/mine")
    with RunDir.read(tmp_path / "runs/mine") as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
        episodes = list(run.episodes(split="demo"))
    assert [line["iteration"] for line in lines if "grad_norm" in line and "mismatch_max" in line] == [1, 2]
    said = {
        "dialogue": {"agent", "user"},
        "picture": {"agent"},
        "program": {"agent"},
        "roles": {"guide", "finder"},
    }[kind]
    assert {turn.agent for episode in episodes for turn in episode.turns} == said


@pytest.mark.slow
@pytest.mark.family("packages")
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_offers_its_recipe_and_its_own_code(tmp_path: Path, kind: str) -> None:
    files = {path.relative_to(tmp_path / "toy-env").as_posix() for path in new_package("toy-env", kind, tmp_path)}
    assert files >= {"pyproject.toml", "README.md", "tests/test_environment.py", "src/toy_env/recipe.yaml"}
    project = tomllib.loads((tmp_path / "toy-env/pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    assert points["agentrl.recipes"] == {"toy-env": "toy_env"}
    assert points.keys() <= {"agentrl.recipes", *map(group_of, REGISTRIES)}
    offers = {kind: points.get(group_of(kind), {}) for kind in ("agents", "rewards", "tools")}
    needs = "agentrl-framework[vision]" if kind == "picture" else "agentrl-framework"
    assert project["dependencies"] == [needs]
    if kind == "roles":
        assert offers["agents"] == {"toy-env-pair": "toy_env.task:Pair"}
    if kind == "game":
        assert offers == {
            "agents": {},
            "rewards": {"toy-env-won": "toy_env.task:won"},
            "tools": {"toy-env-guess": "toy_env.task:Guess"},
        }
    for each, offered in offers.items():
        for reference in offered.values():
            registry_of(each).find(
                f"./{reference.replace('toy_env.task', 'task.py')}", tmp_path / "toy-env/src/toy_env"
            )
    written = "".join((tmp_path / "toy-env" / path).read_text() for path in files)
    assert not re.search(r"\b(NAME|MODULE|ABOUT|OFFERS)\b|EXTRAS", written)


@pytest.mark.parametrize("name", ["1st", "class", "json", "quickstart", "end-"])
def test_a_name_that_cannot_be_a_package(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="cannot be the name of a package"):
        new_package(name, "game", tmp_path)
    assert not [*tmp_path.iterdir()]
