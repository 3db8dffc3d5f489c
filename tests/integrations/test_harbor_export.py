"""Recipes as Harbor task folders: what is written passes and fails as it does here, and what cannot be is refused."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agentrl
from agentrl.api.recipes import given_recipe
from agentrl.cli import app
from agentrl.commands.init import new_recipe
from agentrl.integrations.harbor.export import export, inexpressible
from agentrl.types.paths import data_path

PLAYED = """\
name: bugs-harbor
tasks: {source: harbor, args: {path: ./tasks}}
agent: {max_turns: 8, format: hermes}
tools: [harbor, shell]
rewards: {harbor: {}}
scripts:
  oracle: "agentrl.integrations.harbor.tasks:oracle"
  nothing: ./scripts.py:nothing
  proof: ./scripts.py:proof
  equal: ./scripts.py:equal
  lingering: ./scripts.py:lingering
"""
SCRIPTS = """\
from textwrap import dedent
from agentrl import Say

FORGERIES = {!r}

def nothing(task, rng):
    yield Say("Done.")

def forger(name):
    def script(task, rng):
        text = dedent(FORGERIES[name])
        yield Say(calls=[("shell", {{"command": f"cat > code.py <<'END'\\n{{text}}\\nEND"}})])
        yield Say("Done.")
    return script

proof, equal, lingering = map(forger, FORGERIES)
"""


FORGERIES = {
    "proof": """
        import os, sys
        frame = sys._getframe(1)
        for word in [each for each in frame.f_code.co_consts if isinstance(each, str) and len(each) == 32]:
            print(word)
        sys.stdout.flush()
        os._exit(0)
    """,
    "equal": "class Equal:\n    __eq__ = lambda self, other: True\ndef f(*args): return Equal()",
    "lingering": """
        import os, subprocess
        write = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json"
        subprocess.run(["sh", "-c", write])
        def f(*args): return None
    """,
}


@pytest.mark.slow
def test_a_repair_set_is_played_by_the_adapter(tmp_path: Path) -> None:
    new_recipe("bugs", "repair", tmp_path)
    command = ["env", "export", str(tmp_path / "bugs"), "--out", str(tmp_path / "tasks"), "-n", "2"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert said.output.startswith("2 tasks in ")
    (tmp_path / "recipe.yaml").write_text(PLAYED)
    (tmp_path / "scripts.py").write_text(SCRIPTS.format(FORGERIES))
    forgers = [(name, 0.0) for name in FORGERIES]
    for script, reward in (("oracle", 1.0), ("nothing", 0.0), *forgers):
        run = agentrl.rollout(tmp_path, 2, script=script, out=tmp_path / script, reporters=())
        assert [episode.reward for episode in run.whole_episodes()] == [reward] * 2


def holds(folder: Path, check: dict[str, Any]) -> bool:
    """What the verifier says of a folder."""
    spec = importlib.util.spec_from_file_location("verify", data_path("tools", "harbor", "verify.py"))
    assert spec is not None
    assert spec.loader is not None
    verify = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(verify)
    verify.PROGRAMS = data_path("tools", "verify")
    given = {"workdir": str(folder), "answer_file": str(folder / "answer.txt")}
    return bool(verify.KINDS[check["kind"]](check | {"timeout_s": 60, "files": [str(folder / "f.py")]}, given))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ({"kind": "exact_match", "references": ["the Moon"]}, {"answer.txt": "moon."}, {"answer.txt": "sun"}),
        ({"kind": "state_check", "state": [{"file": "a", "equals": "1"}]}, {"a": "1\n"}, {"a": "2"}),
        ({"kind": "state_check", "state": [{"file": "a", "absent": True}]}, {}, {"a": ""}),
        ({"kind": "state_check", "state": [{"command": "cat a", "stdout": "x"}]}, {"a": "x"}, {"a": "y"}),
        ({"kind": "code_tests", "tests": ["assert f(1) == 2"]}, {"f.py": "def f(x): return 2"}, {"f.py": "exit(0)"}),
        ({"kind": "code_tests", "tests": ["assert f(1) == 2"]}, {"f.py": "def f(x): return x * 2"}, {}),
    ],
)
def test_the_verifier(tmp_path: Path, check: dict[str, Any], right: dict[str, str], wrong: dict[str, str]) -> None:
    for name, files, expected in (("right", right, True), ("wrong", wrong, False)):
        folder = tmp_path / name
        folder.mkdir()
        for path, text in files.items():
            (folder / path).write_text(text)
        assert holds(folder, check) is expected


@pytest.mark.parametrize(
    ("recipe", "said"),
    [("quickstart", "the tool .*exists only here"), ("search-qa", "the tool search exists only here")],
)
def test_what_harbors_form_cannot_express(recipe: str, said: str) -> None:
    assert re.fullmatch(said, str(inexpressible(given_recipe(recipe, []))))


def test_a_reward_of_weight_0_is_left_out(tmp_path: Path) -> None:
    (folder,) = export(given_recipe("terminal", []), tmp_path / "out", 1)
    checks = json.loads((folder / "tests" / "checks.json").read_text())
    assert [each["kind"] for each in checks["components"]] == ["state_check"]
    paid = given_recipe("terminal", ["rewards.tool_success.weight=0.1"])
    assert inexpressible(paid) == "the reward tool_success runs only here"


@pytest.mark.slow
def test_the_checks_and_the_files_of_a_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new_recipe("bugs", "repair", tmp_path)
    (folder,) = export(given_recipe(str(tmp_path / "bugs"), []), tmp_path / "tasks", 1)
    checks = json.loads((folder / "tests" / "checks.json").read_text())
    assert checks["components"][0]["files"] == ["/work/code.py"]
    assert "COPY files/work /work" in (folder / "environment" / "Dockerfile").read_text()
    assert (folder / "environment" / "files" / "work" / "code.py").read_text().startswith("def f(x):")
    subprocess.run(["sh", "-n", folder / "solution" / "solve.sh"], check=True)
    assert "What remains" in (tmp_path / "tasks" / "README.md").read_text()
    assert "README.md says what could forge them" in caplog.text
