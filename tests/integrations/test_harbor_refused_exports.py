"""Recipes that `agentrl env export` refuses, and the files it writes for sandbox and script. Nothing is started."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from agentrl import Say
from agentrl.api.recipes import given_recipe
from agentrl.config.recipe import Recipe
from agentrl.config.rewards import RewardSettings
from agentrl.integrations.harbor.export import _more, _problem, _solution, export, inexpressible
from agentrl.types.errors import RecipeError
from agentrl.types.task import Task

RECIPE = """\
name: asked
tasks: {{jsonl: ./rows.jsonl, prompt: "{{question}}", id: id}}
tools: [shell, answer]
rewards: {{{rewards}}}
sandbox: {{spec: {{{spec}}}}}
"""


def a_recipe(folder: Path, rewards: str, row: dict[str, Any], spec: str = "") -> Recipe:
    (folder / "rows.jsonl").write_text(json.dumps({"id": "first", "question": "How many?", **row}) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE.format(rewards=rewards, spec=spec))
    return given_recipe(folder)


def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path, "exact_match: {}", {"answer": "3"})
    (tmp_path / "out").mkdir()
    with pytest.raises(RecipeError, match="there is a .*/out already") as refused:
        export(recipe, tmp_path / "out")
    assert (refused.value.place, [*(tmp_path / "out").iterdir()]) == ("--out", [])


def test_an_answer_is_checked_against_the_references_of_the_task(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path, "exact_match: {key: wanted}", {"wanted": ["3", "three"]})
    assert inexpressible(recipe) is None
    (folder,) = export(recipe, tmp_path / "out")
    checks = json.loads((folder / "tests/checks.json").read_text())
    assert checks["components"] == [{"kind": "exact_match", "weight": 1.0, "references": ["3", "three"]}]
    assert (folder / "instruction.md").read_text() == "How many?\n\nWrite your final answer to /work/answer.txt.\n"


def test_hosts_and_limits_of_the_sandbox_are_those_of_the_task(tmp_path: Path) -> None:
    spec = "network: {allow: [a.example, '*.b.example']}, cpu: 2, memory_mb: 512"
    (folder,) = export(a_recipe(tmp_path, "exact_match: {}", {"answer": "3"}, spec), tmp_path / "out")
    assert tomllib.loads((folder / "task.toml").read_text())["environment"] == {
        "network_mode": "allowlist", "allowed_hosts": ["a.example", "*.b.example"], "cpus": 2, "memory_mb": 512,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rewards", "row", "message", "remedy"),
    [
        ("code_tests: {files: [a.py]}", {"tests": "assert f()"}, "tests of this form", "lists of Python statements"),
        ("code_tests: {files: [a.py]}", {"tests": [1]}, "tests of this form", "lists of Python statements"),
        ("state_check: {}", {"state": []}, r"no state checks: \[\]", "give a list"),
        ("state_check: {key: after}", {"after": "done"}, "no state checks: 'done'", "give a list"),
    ],
)
def test_tests_that_harbors_verifier_cannot_run_are_refused_by_the_task(
    tmp_path: Path, rewards: str, row: dict[str, Any], message: str, remedy: str
) -> None:
    with pytest.raises(RecipeError, match=message) as refused:
        export(a_recipe(tmp_path, rewards, row), tmp_path / "out")
    assert refused.value.place == "task first"
    assert remedy in (refused.value.remedy or "")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("exact_match", {"trim": True}, "rewards.exact_match has then, or keys other than files, key, timeout_s"),
        ("code_tests", {"files": ["a.py", "b.py"]}, "rewards.code_tests must take one file"),
        ("code_tests", {}, "rewards.code_tests must take one file"),
        ("code_tests", {"files": ["a.py"]}, None),
        ("f1", {}, "the reward f1 runs only here"),
    ],
)
def test_a_reward_that_harbor_cannot_express_is_named(name: str, settings: dict[str, Any], said: str | None) -> None:
    assert _problem(name, RewardSettings.model_validate(settings)) == said


def test_a_reward_that_is_transformed_cannot_be_exported() -> None:
    assert "has then" in str(_problem("exact_match", RewardSettings.model_validate({"then": [{"clip": [0, 1]}]})))


def test_tools_and_images_of_a_task_cannot_be_exported(tmp_path: Path) -> None:
    assert _more(Task.of("plain", "x")) is None
    assert _more(Task(id="t", instruction=[{"role": "user", "content": "x"}], tools=[])) == "tools of its own"
    shown: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    assert _more(Task(id="t", instruction=shown)) == "images"
    recipe = a_recipe(tmp_path, "exact_match: {}", {"answer": "3", "question": "?"})
    assert inexpressible(recipe) is None


def a_script(*said: Say) -> Any:
    def script(task: Task, rng: random.Random) -> Generator[Say, Any, None]:
        yield from (each for each in said)

    return script


def test_a_solution_runs_the_commands_of_the_oracle_and_writes_its_answer() -> None:
    script = a_script(Say(calls=[("shell", {"command": "touch made"})]), Say(calls=[("answer", {"text": "it's 3"})]))
    lines = str(_solution(script, Task.of("t", "x"), "/work/answer.txt")).splitlines()
    assert lines == ["set -e", "touch made", "printf %s 'it'\"'\"'s 3' > /work/answer.txt"]


def test_the_last_text_is_the_answer() -> None:
    script = a_script(Say("no"), Say("4"))
    assert "printf %s 4 >" in str(_solution(script, Task.of("t", "x"), "/a"))


def test_an_oracle_that_does_more_than_run_commands_has_no_solution() -> None:
    script = a_script(Say(calls=[("python", {"code": "1"})]), Say("4"))
    assert _solution(script, Task.of("t", "x"), "/a") is None
