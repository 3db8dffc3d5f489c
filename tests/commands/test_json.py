"""`--json`: every command that prints takes it, and writes one document to standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.quickstart import figures
from tests.command import agentrl, commands

WITHOUT = {
    "serve": "runs until Ctrl-C",
    "proxy": "runs until Ctrl-C",
    "search serve": "runs until Ctrl-C",
    "top": "a display that stays until it is left",
    "sandbox run": "its output is that of the program it runs",
    "recipe schema": "its text is a JSON document",
}
"""The commands that do not take `--json`, and why."""

HELP = "One JSON document instead of text (docs/python.md)."

LOUD = """
print("imported")

def loud(task, episode):
    import subprocess
    print("scored")
    subprocess.run(["echo", "from a child process"])
    return 1.0
"""


def test_every_command_takes_it_or_stands_in_the_table() -> None:
    options = {name: [each for each in found.params if "--json" in each.opts] for name, found in commands().items()}
    assert {name for name, found in options.items() if not found} == set(WITHOUT)
    others = {option for found in options.values() for option in found if getattr(option, "help", "") != HELP}
    assert not others, "an option of its own, which does not keep standard output for the document"


def document(*words: str, cwd: Path, code: int = 0) -> Any:
    """What a command writes; nothing else may be on standard output."""
    done = agentrl(*words, "--json", cwd=cwd, ok=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def loud(counting: Path) -> Path:
    """The folder beside a recipe whose code prints."""
    code = counting / "task.py"
    code.write_text(code.read_text() + LOUD)
    recipe = counting / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("rewards: {", "rewards: {loud: {use: ./task.py:loud, weight: 0}, "))
    return counting.parent


@pytest.fixture
def stored(loud: Path) -> Path:
    """The folder in which the run `run` lies."""
    found = document(
        "rollout", "counting", "-n", "4", "--group-size", "2", "--script", "hasty", "--out", "run", cwd=loud
    )
    assert (found["run"], found["summary"]["episodes"]) == ("run", 4)
    return loud


@pytest.mark.slow
def test_what_is_said_of_a_stored_run(stored: Path) -> None:
    assert document("check", "run", cwd=stored)["ok"]
    rows = document("export", "run", "--to", "openai", "--out", "talks.jsonl", cwd=stored)
    assert (rows["place"], rows["episodes"], rows["changed"]) == ("talks.jsonl", 4, {})
    assert len((stored / "talks.jsonl").read_text().splitlines()) == 4
    rewards = document("rescore", "run", "--recipe", "counting", cwd=stored)
    assert rewards["components"]["loud"] == {"recorded": 1.0, "new": 1.0, "unscored": 0}
    assert len(document("credit", "run", "--estimator", "grpo", cwd=stored)["episodes"]) == 4
    assert len(document("credit", "run", "--estimator", "grpo", "--episode", "count1", cwd=stored)["episodes"]) == 2
    assert (stored / document("view", "run", "--export", "page.html", cwd=stored)["page"]).exists()


@pytest.mark.slow
def test_show_lists_episodes_or_gives_one(stored: Path) -> None:
    document("rescore", "run", "--recipe", "counting", cwd=stored)
    found = document("show", "run", "--sort", "reward", "--desc", "--limit", "3", cwd=stored)
    assert found["summary"]["episodes"] == 4
    rewards = [row["reward"] for row in found["episodes"]]
    assert (rewards, len(rewards)) == (sorted(rewards, reverse=True), 3)
    id = found["episodes"][0]["id"]
    one = document("show", "run", id, cwd=stored)
    assert (one["episode"]["id"], one["credit"], list(one["rewards"])) == (id, None, ["again"])
    assert one["episode"]["turns"][0]["calls"][0]["name"] == "add"
    assert "nodes" not in one["episode"]
    assert document("show", "run", id, "--tokens", cwd=stored)["episode"]["nodes"][0]["token_ids"]


@pytest.mark.slow
def test_what_is_said_of_a_recipe(loud: Path) -> None:
    found = document("recipe", "check", "counting", cwd=loud)
    assert (found["tasks"], found["tools"], found["model"]) == (40, ["add"], None)
    assert (found["rewards"], found["warnings"]) == ({"loud": [], "exact": []}, [])
    assert document("recipe", "show", "counting", "--set", "seed=7", cwd=loud)["seed"] == 7
    assert "credit" in json.loads(agentrl("recipe", "schema", cwd=loud).stdout)["properties"]


@pytest.mark.slow
def test_what_is_said_of_this_machine(tmp_path: Path) -> None:
    assert {"what", "ok", "found", "fix"} == set(document("doctor", cwd=tmp_path)[0])
    assert "tools" in [row["name"] for row in document("list", cwd=tmp_path)]
    assert "shell" in [row["name"] for row in document("list", "tools", cwd=tmp_path)]
    assert {"name", "built", "rootfs"} == set(document("sandbox", "build", cwd=tmp_path)[0])
    assert "stdin-eof" in [row["name"] for row in document("sandbox", "check", "--list", cwd=tmp_path)]
    (swept,) = document("sandbox", "gc", "--dry-run", "--backend", "namespace", cwd=tmp_path)
    assert (swept["backend"], swept["skipped"]) == ("namespace", None)
    (tmp_path / "p.yaml").write_text("groups: 2\nepisode: {turns: 2, reply_tokens: 20}\n")
    assert [row["gpus"] for row in document("simulate", "p.yaml", "--times", "1,4", cwd=tmp_path)] == [2, 8]


@pytest.mark.slow
def test_training_and_its_evaluation(loud: Path) -> None:
    recipe = loud / "counting" / "recipe.yaml"
    recipe.write_text(recipe.read_text() + TRAINING)
    found = document("train", "counting", "--out", "run", cwd=loud)
    assert (found["run"], found["summary"]["splits"]["train"]["episodes"]) == ("run", 4)
    evaluated = document("eval", "run", "-n", "3", "--out", "evaluated", cwd=loud)
    assert (evaluated["run"], evaluated["episodes"], evaluated["split"]) == ("evaluated", 3, "eval")


TRAINING = """\
agent: {format: tags, max_turns: 3, describe_tools: false}
model: {scratch: {hidden: 16, layers: 1, heads: 2, vocab_size: 300, max_context: 256}}
sampling: {max_tokens: 4}
train: {iterations: 1, groups: 2, group_size: 2, minibatch: 4}
scale: {rollout_workers: 1}
"""


def test_a_comparison_gives_the_figures_of_each_seed() -> None:
    def run(*solved: float) -> list[dict[str, Any]]:
        before, after = ({"split": "eval", "success": each, "turns": 9.0 - each} for each in (solved[0], solved[-1]))
        return [before, *({"split": "train", "success": each} for each in solved), after]

    assert figures([run(0.0, 0.9, 0.9, 0.9), run(0.5, 0.5)]) == {
        "solved_at_start": [0.0, 0.5],
        "solved_at_end": [0.9, 0.5],
        "iterations_to_90": [4, None],
        "turns_at_end": [8.1, 8.5],
    }


@pytest.mark.slow
def test_an_error_is_on_standard_error_alone(loud: Path) -> None:
    for words, code, said in (
        (("show", "nowhere"), 1, "nowhere: there is no such folder"),
        (("recipe", "check", "counting", "--set", "sead=1"), 1, "unknown key"),
        (("sandbox", "check"), 2, "say which backend, or --list"),
    ):
        failed = agentrl(*words, "--json", cwd=loud, ok=False)
        assert (failed.returncode, failed.stdout) == (code, "")
        assert said in failed.stderr


@pytest.mark.slow
def test_what_came_of_the_rest_is_written_before_the_error(loud: Path) -> None:
    code = loud / "counting" / "task.py"
    code.write_text(code.read_text().replace("said = [", "assert task.id != 'count1'\n    said = ["))
    found = document("rollout", "counting", "-n", "3", "--script", "oracle", "--out", "run", cwd=loud, code=1)
    assert found["summary"]["statuses"] == {"done": 2, "user_error": 1}
