"""One rule for paths: `./` and `../` are relative to the file that says them, and links are not followed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.api.recipe_check import check
from agentrl.config.loader import load_recipe
from agentrl.registry.references import resolve_references
from agentrl.types.errors import RecipeError
from agentrl.types.paths import all_beside, beside

TASKS = 'name: p\ntasks: {jsonl: ./t.jsonl, prompt: "{q}"}\nrewards: {exact_match: {}}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "recipe"
    made.mkdir()
    (made / "t.jsonl").write_text('{"q": "a", "answer": "b"}\n')
    return made


def written(folder: Path, more: str) -> str:
    (folder / "recipe.yaml").write_text(TASKS + more)
    return str(folder)


@pytest.mark.parametrize(("said", "is_"), [("./model", "recipe/model"), ("../models/m", "models/m")])
def test_a_model_lies_beside_its_recipe(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    recipe = load_recipe(written(folder, f"model: {{path: {said}}}\npolicies: {{x: {{checkpoint: {said}}}}}\n"))
    assert recipe.model is not None
    assert recipe.model.path == recipe.policies["x"].checkpoint == str(tmp_path / is_)
    typed = load_recipe(written(folder, "model: {path: ./model}\n"), [f"model.path={said}"])
    assert typed.model is not None
    assert typed.model.path == str(Path(f"{elsewhere}/{said}").absolute()).replace("/./", "/").replace(
        "elsewhere/../", ""
    )


@pytest.mark.parametrize("said", ["models/m", "package:llm", "org/name", "/there/model"])
def test_other_texts_stay_as_they_are(folder: Path, said: str) -> None:
    recipe = load_recipe(written(folder, f"model: {{path: '{said}'}}\n"))
    assert recipe.model is not None
    assert recipe.model.path == said == beside(said, folder)


def test_a_virtual_environment_is_known_by_its_link(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "below").mkdir()
    for base, said in ((tmp_path, "./venv/bin/python"), (tmp_path / "below", "../venv/bin/python")):
        assert resolve_references({"command": [said]}, base) == {"command": [str(python)]}
        assert all_beside({"python": said, "n": 1, "args": [said, "x"]}, base)["args"] == [str(python), "x"]


def test_a_program_that_is_not_there_fails_at_the_check(folder: Path) -> None:
    for said in ("../venv/bin/python", "./nothing", "no-such-program"):
        with pytest.raises(RecipeError, match="there is no program") as caught:
            check(written(folder, f"agent: {{program: ['{said}', x]}}\n"), [])
        assert "relative to the folder of the recipe" in str(caught.value) or said == "no-such-program"
    assert check(written(folder, f"agent: {{program: ['{sys.executable}', x]}}\n"), []).name == "p"
