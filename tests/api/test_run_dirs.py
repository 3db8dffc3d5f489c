"""Run directories that a command continues, and errors about episodes that a run lacks."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentrl.api import hub_models
from agentrl.api.hub_models import at_commits
from agentrl.api.run_dirs import _joined, begin_run
from agentrl.config.loader import load_recipe
from agentrl.store.run_dir import RunDir
from tests.store.make import make_episode

AGAIN = "fix the cause and run the same command again: it adds the missing episodes"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("", AGAIN),
        ("start the server", f"start the server\n     {AGAIN}"),
        (
            "fix the function and run the same command again",
            "fix the function and run the same command again: it adds the missing episodes",
        ),
    ],
)
def test_one_remedy_of_two_that_say_the_same(own: str, expected: str) -> None:
    assert _joined(own, AGAIN) == expected


RECIPE = "name: x\ntasks: {jsonl: rows.jsonl, prompt: q}\nmodel: {path: m}\nrewards: {exact_match: {}}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


def begun(recipe: Path, *, played: bool = False) -> RunDir:
    with begin_run(recipe.parent / "run", load_recipe(str(recipe)), "rollout") as run:
        if played:
            run.add(make_episode("rollout/a#0"))
    return run


def test_a_run_without_data_takes_the_files_as_they_are_now(recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert begun(recipe).info["code"] == {}
    (recipe / "first.py").write_text("a = 1")
    assert set(begun(recipe, played=True).info["code"]) == {"first.py"}
    (recipe / "late.py").write_text("a = 1")
    with caplog.at_level(logging.WARNING):
        assert set(begun(recipe).info["code"]) == {"first.py"}, "what its episodes were played with"
    assert "late.py changed since" in caplog.text


def test_a_run_without_hashes_is_left_so(recipe: Path) -> None:
    with begin_run(recipe.parent / "run", load_recipe(str(recipe)), "rollout") as run:
        run.add(make_episode("rollout/a#0"))
        run.update_info(code=None, data=None)
    assert begun(recipe).info["code"] is None


def test_files_that_cannot_be_read_leave_the_run_free(recipe: Path) -> None:
    begun(recipe, played=True)
    (recipe / "folder.py").mkdir()
    with pytest.raises(IsADirectoryError):
        begun(recipe)
    (recipe / "folder.py").rmdir()
    begun(recipe)


def test_each_model_of_the_hub_gets_its_own_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of policies are the user's: `*` and dots are names."""
    monkeypatch.setattr(hub_models, "fetch_commit", lambda name, revision: f"{name}@{revision}")
    policies = {
        "*": {"checkpoint": "o/p"},
        "a.b": {"checkpoint": "o/q", "revision": "v1"},
        "own": {"checkpoint": "./l"},
    }
    sections = {"name": "x", "tasks": "./t.py:tasks", "model": {"path": "o/m"}, "policies": policies}
    found, commits = at_commits(load_recipe(sections), None)
    assert commits == {"o/m": "o/m@None", "o/p": "o/p@None", "o/q@v1": "o/q@v1"}
    assert found.required_model.revision == "o/m@None"
    assert {name: each.revision for name, each in found.policies.items()} == {
        "*": "o/p@None", "a.b": "o/q@v1", "own": None,
    }  # fmt: skip
