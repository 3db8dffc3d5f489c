"""Plug-ins and recipes of installed packages: found by name, never shadowing, and named when they are broken."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from agentrl.api.run_dirs import begin_run
from agentrl.commands.plug_ins import kinds, plug_ins
from agentrl.config.files import find_recipe
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe, recipe_from_run
from agentrl.registry.installed import group_of, offers
from agentrl.registry.kinds import KINDS, registry_of
from agentrl.store.info import read_info
from agentrl.types import errors
from agentrl.types.errors import RecipeError
from tests.registry.packaged import Packages, packages

__all__ = ["packages"]

REWARD = "def won(episode) -> float:\n    '''Returns 1.'''\n    return 1.0\n"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_group(kind: str) -> None:
    assert registry_of(kind).group == kind
    assert re.fullmatch(r"agentrl(\.\w+)+", group_of(kind)), "what the standard allows"


def test_a_plug_in_is_found_by_its_name(packages: Packages) -> None:
    packages.install("toy-a", {"agentrl.rewards: toy-won": "toy_a:won"}, {"toy_a.py": REWARD})
    rewards = registry_of("rewards")
    assert rewards.find("toy-won").__module__ == "toy_a"
    (row,) = [row for row in plug_ins("rewards") if row["name"] == "toy-won"]
    assert (row["package"], row["does"], row["missing"]) == ("toy-a 1.0", "Returns 1.", None)
    assert {row["name"]: row["packages"] for row in kinds()}["rewards"] == {"toy-won": "toy-a 1.0"}
    with pytest.raises(RecipeError, match="did you mean 'toy-won'"):
        rewards.find("toy-wo")


def test_it_has_settings_as_code_of_the_user_has(packages: Packages) -> None:
    agent = "from agentrl import ToolAgent\nclass Patient(ToolAgent):\n    def __init__(self, waits: int = 1): ...\n"
    packages.install("toy-b", {"agentrl.agents: patient": "toy_b:Patient"}, {"toy_b.py": agent})
    recipe = Recipe.model_validate(
        {"name": "x", "tasks": "./task.py:tasks", "agent": {"use": "patient", "waits": 3}, "scripts": {}, "rewards": {}}
    )
    assert registry_of("agents").chosen(recipe.agent).arguments == {"waits": 3}


def test_a_package_is_imported_when_it_is_named(packages: Packages) -> None:
    packages.install("toy-c", {"agentrl.rewards: toy-c": "toy_c:won"}, {"toy_c.py": "raise SystemExit('no')"})
    registry_of("rewards").find("f1")
    assert "toy_c" not in sys.modules
    with pytest.raises(RecipeError, match=r"the package toy-c 1.0 offers 'toy-c' \(agentrl.rewards\).*SystemExit: no"):
        registry_of("rewards").find("toy-c")
    (row,) = [row for row in plug_ins("rewards") if row["name"] == "toy-c"]
    assert "toy-c 1.0" in row["missing"]
    assert [row["missing"] for row in plug_ins("rewards") if row["package"] is None] == [
        None for _ in registry_of("rewards").built_in
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("nowhere_at_all:won", "there is no module 'nowhere_at_all'"),
        ("toy_d:lost", "toy_d has no 'lost'"),
        ("toy_d", "'toy_d' names no object"),
        ("toy_d:NUMBER", "is a int, not a function"),
    ],
)
def test_an_entry_point_that_is_wrong_names_its_package(packages: Packages, value: str, why: str) -> None:
    packages.install("toy-d", {"agentrl.rewards: toy-d": value}, {"toy_d.py": f"NUMBER = 1\n{REWARD}"})
    with pytest.raises(RecipeError, match=rf"the package toy-d 1.0 offers 'toy-d'.*{why}") as error:
        registry_of("rewards").find("toy-d", place="rewards.x")
    assert error.value.place == "rewards.x"
    assert error.value.remedy


def test_a_name_that_is_built_in_is_not_shadowed(packages: Packages) -> None:
    packages.install("toy-e", {"agentrl.formats: qwen": "toy_e:Mine", "agentrl.rewards: f1": "toy_e:won"})
    twice = r"the reward 'f1' is offered twice: by agentrl itself \(.*verifiers:f1\) and by the package toy-e 1.0"
    with pytest.raises(RecipeError, match=twice) as error:
        registry_of("rewards").find("f1")
    assert "toy_e:won" in str(error.value.remedy)
    with pytest.raises(RecipeError, match="'qwen' is offered twice"):
        registry_of("formats").find("qwen")
    assert registry_of("rewards").find("agentrl.rewards.functions.verifiers:f1").__name__ == "f1"


def test_two_packages_with_one_name(packages: Packages) -> None:
    packages.install("toy-f", {"agentrl.tools: both": "toy_f:A"})
    packages.install("toy-g", {"agentrl.tools: both": "toy_g:B"})
    with pytest.raises(RecipeError, match=r"by the package toy-g 1.0 \(toy_g:B\) and by the package toy-f 1.0"):
        registry_of("tools").find("both")


def test_a_copy_further_down_the_path_does_not_count(packages: Packages, tmp_path: Path) -> None:
    packages.install("toy-h", {"agentrl.rewards: toy-h": "toy_h:old"}, {"toy_h.py": REWARD})
    other = Packages(tmp_path / "first", packages._patch)
    other.install("toy-h", {"agentrl.rewards: toy-h": "toy_h:won"}, {"toy_h.py": REWARD})
    assert [each.value for each in offers("rewards") if each.name == "toy-h"] == ["toy_h:won"]


@pytest.mark.parametrize("text", ["[agentrl.rewards]\nno pair\n", "[agentrl.rewards\n", "agentrl.rewards = 1\n"])
def test_metadata_that_are_damaged_are_nobodys_business(packages: Packages, text: str) -> None:
    site = packages.install("toy-i", {}, {})
    (site / "toy_i-1.0.dist-info/entry_points.txt").write_text(text)
    packages.install("toy-j", {"agentrl.rewards: toy-j": "toy_j:won"}, {"toy_j.py": REWARD})
    assert registry_of("rewards").find("toy-j").__name__ == "won"


RECIPE = "name: toys\ntasks: ./task.py:tasks\nrewards: {exact_match: {}}\n"


def test_a_recipe_is_found_by_its_name(packages: Packages) -> None:
    files = {"toy_k/recipes/recipe.yaml": RECIPE, "toy_k/recipes/hard.yaml": RECIPE, "toy_k/__init__.py": "1 / 0"}
    site = packages.install("toy-k", {"agentrl.recipes: toys": "toy_k.recipes"}, files)
    assert find_recipe("toys") == site / "toy_k/recipes/recipe.yaml"
    assert find_recipe("toys/hard.yaml") == site / "toy_k/recipes/hard.yaml"
    assert load_recipe("toys").base == site / "toy_k/recipes", "and its package was not imported"
    with pytest.raises(RecipeError, match="the package toy-k 1.0 offers 'toys'.*no file toy_k/recipes/none.yaml"):
        find_recipe("toys/none.yaml")
    with pytest.raises(RecipeError, match="did you mean 'toys'"):
        find_recipe("toy")


def test_a_shipped_recipe_is_not_shadowed(packages: Packages) -> None:
    packages.install("toy-l", {"agentrl.recipes: quickstart": "toy_l"}, {"toy_l/recipe.yaml": RECIPE})
    with pytest.raises(RecipeError, match=r"'quickstart' is offered twice: by agentrl itself \(.*by the package toy-l"):
        find_recipe("quickstart")
    assert find_recipe("games/self-play.yaml").is_file()


@pytest.mark.parametrize("value", ["nowhere_at_all", "toy_m.deep", "toy_m:recipe", "..x", "json"])
def test_a_recipe_that_is_not_there_names_its_package(packages: Packages, value: str) -> None:
    packages.install("toy-m", {"agentrl.recipes: toym": value}, {"toy_m/__init__.py": ""})
    with pytest.raises(RecipeError, match="the package toy-m 1.0 offers 'toym'.*it has no file"):
        find_recipe("toym")


def test_a_folder_of_this_name_comes_first(packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = packages.install("toy-n", {"agentrl.recipes: toyn": "toy_n"}, {"toy_n/recipe.yaml": RECIPE})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toyn").mkdir()
    assert find_recipe("toyn") == site / "toy_n/recipe.yaml", "the folder of a package has no recipe itself"
    (tmp_path / "toyn/recipe.yaml").write_text(RECIPE)
    assert find_recipe("toyn") == Path("toyn/recipe.yaml")


def test_an_error_in_the_code_of_a_package_has_its_line(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def won(episode) -> float:\n    return 1 / 0\n"
    site = packages.install("toy-l", {"agentrl.rewards: toy-l": "toy_l.task:won"}, {"toy_l/task.py": code})
    (site / "toy_l/__init__.py").write_text("")
    (site / "library.py").write_text("def divide():\n    return 1 / 0\n")
    monkeypatch.setattr(errors, "_NOT_THE_USERS", (*errors._NOT_THE_USERS, f"{site}/"))
    import_module("library")

    def place(function: Callable[[], object]) -> str:
        with pytest.raises(ZeroDivisionError) as raised:
            function()
        return errors.place_of(raised.value.with_traceback(raised.tb.tb_next))

    module = import_module("toy_l.task")
    assert place(lambda: module.won(None)).startswith(__file__)
    registry_of("rewards").find("toy-l")
    assert place(lambda: module.won(None)) == f"{site}/toy_l/task.py:2 in won"
    assert place(import_module("library").divide) == "", "a library beside it"


def test_a_run_notes_the_versions_of_the_packages_that_it_uses(packages: Packages, tmp_path: Path) -> None:
    packages.install("toy-v", {"agentrl.rewards: toy-v": "toy_v:won"}, {"toy_v.py": REWARD})
    packages.install("toy-w", {"agentrl.rewards: toy-w": "toy_w:won"}, {"toy_w.py": REWARD})
    files = {"toy_x/recipe.yaml": RECIPE, "toy_x/__init__.py": "", "toy_x/task.py": "tasks = list\n"}
    packages.install("toy-x", {"agentrl.recipes: toys": "toy_x"}, files)
    recipe = load_recipe("toys", ["rewards={mine: toy-v}"])
    begin_run(tmp_path / "run", recipe, "rollout").close()
    versions = read_info(tmp_path / "run")["versions"]
    assert {name: versions.get(f"toy-{name}") for name in "vwx"} == {"v": "1.0", "w": None, "x": "1.0"}


def test_a_run_notes_the_package_of_its_base(packages: Packages, tmp_path: Path) -> None:
    files = {"toy_y/deep/recipe.yaml": RECIPE, "toy_y/deep/task.py": "tasks = list\n"}  # a package without __init__.py
    packages.install("toy-y", {"agentrl.recipes: toys": "toy_y.deep"}, files)
    (tmp_path / "mine.yaml").write_text("base: toys\n")
    (tmp_path / "ours.yaml").write_text("base: ./mine.yaml\n")
    begin_run(tmp_path / "run", load_recipe(str(tmp_path / "ours.yaml"), ["seed=1"]), "rollout").close()
    info = read_info(tmp_path / "run")
    assert info["versions"].get("toy-y") == "1.0"
    assert [Path(each).name for each in info["bases"]] == ["mine.yaml", "recipe.yaml"]
    stored = recipe_from_run(info).model_copy(update={"seed": 2})
    begin_run(tmp_path / "again", stored, "rollout").close()
    assert read_info(tmp_path / "again")["versions"].get("toy-y") == "1.0", "a run with the recipe of a run"


@pytest.mark.parametrize("value", ["toy_z", "sys", "json.decoder"])
def test_a_module_is_no_folder_of_a_recipe(packages: Packages, value: str) -> None:
    packages.install("toy-z", {"agentrl.recipes: toyz": value}, {"toy_z.py": RECIPE})
    with pytest.raises(RecipeError, match="the package toy-z 1.0 offers 'toyz'.*it has no file"):
        find_recipe("toyz")
