"""What agents forge in the sandbox of a Harbor verifier: none of it is a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.integrations.harbor.verifier import _read as read
from tests.integrations.test_harbor import a_task

CHECK = """\
#!/bin/bash
# A verifier that runs the agent's program, as most do, and trusts modules of its own Python.
cd /app
python3 - <<'END'
import json, os, subprocess
said = subprocess.run(["bash", "./answer.sh"], capture_output=True, text=True).stdout.strip()
right = json.loads(json.dumps(said)) == "10"
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1" if right else "0")
END
bash ./after.sh
exit 0
"""
FORGERS = {
    "a module on the path of the verifier": (
        "mkdir -p /tmp/verifier-home/guard/json && cd /tmp/verifier-home/guard && "
        "printf 'def dumps(x): return 1\\ndef loads(x): return \"10\"\\n' > json/__init__.py && "
        "chmod 0555 json",
        "", "",
    ),
    "a second verdict": ("", "mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json", ""),
    "a verdict that its test does not outlive": ("", "", "echo 1 > /logs/verifier/reward.txt; kill -9 $PPID"),
    "a large number": ("", "", "echo 1000000 > /logs/verifier/reward.txt"),
    "a number that is none": ("", "", "echo nan > /logs/verifier/reward.txt"),
    "a reward that is a folder": ("", "", "rm /logs/verifier/*; mkdir /logs/verifier/reward.txt"),
    "brackets": ("", "", "rm /logs/verifier/*; head -c 300000 /dev/zero | tr '\\0' '[' > /logs/verifier/reward.json"),
}  # fmt: skip
"""What the agent does, and what its program does while it is verified and after that."""

RECIPE = """\
name: forged
tasks: {source: harbor, args: {path: tasks}}
agent: {max_turns: 4, format: hermes}
tools: [harbor, shell]
rewards: {harbor: {}}
limits: {retries: 0, user_errors: 0}
scripts: {oracle: ./forge.py:right, forge: ./forge.py:forge}
"""
SCRIPT = """\
from agentrl import Say
DOES, ANSWERS, AFTER = {does!r}, {answers!r}, {after!r}

def files(answers, after):
    return f"cat > answer.sh <<'END'\\n{{answers}}\\nEND\\ncat > after.sh <<'END'\\n{{after}}\\nEND\\n"

def right(task, rng):
    yield Say(calls=[("shell", {{"command": files("echo 10", "")}})])
    yield Say("Done.")

def forge(task, rng):
    yield Say(calls=[("shell", {{"command": files(ANSWERS + "; echo 9", AFTER) + DOES}})])
    yield Say("Done.")
"""


@pytest.mark.slow
@pytest.mark.parametrize("forger", FORGERS)
def test_no_forgery_is_paid_and_none_voids_its_episode(tmp_path: Path, forger: str) -> None:
    does, answers, after = FORGERS[forger]
    a_task(tmp_path / "tasks" / "shared", **{"tests/test.sh": CHECK})
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "forge.py").write_text(SCRIPT.format(does=does, answers=answers or "true", after=after or "true"))
    run = agentrl.rollout(tmp_path, 1, script="forge", out=tmp_path / "forged", reporters=())
    assert [(episode.status, episode.reward) for episode in run.whole_episodes()] == [("done", 0.0)]


@pytest.mark.slow
def test_the_same_verifier_pays_what_is_right(tmp_path: Path) -> None:
    a_task(tmp_path / "tasks" / "shared", **{"tests/test.sh": CHECK})
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "forge.py").write_text(SCRIPT.format(does="", answers="", after=""))
    run = agentrl.rollout(tmp_path, 1, script="oracle", out=tmp_path / "right", reporters=())
    assert [episode.reward for episode in run.whole_episodes()] == [1.0]


@pytest.mark.parametrize(
    ("of_json", "of_text", "noted"),
    [
        ("[" * 300_000, None, "cannot be read"),
        ("[1]", None, "and no number"),
        ('{"reward": {}}', None, "and no number"),
        ('{"reward": "1"}', None, "and no number"),
        ('{"reward": null}', None, "and no number"),
        ("9" * 400, None, "no number of at most 1000"),
        ("9" * 5000, None, "cannot be read"),
        ("1e999", None, "no number of at most 1000"),
        ('{"reward": NaN}', None, "no number of at most 1000"),
        ('{"a": 1, "b": 1}', None, "has no 'reward', but a, b"),
        ("{}", None, "has no 'reward', but nothing"),
        ("", None, "cannot be read"),
        (None, "9" * 400, "no number of at most 1000"),
        (None, "-inf", "no number of at most 1000"),
        (None, "1 1", "cannot be read"),
        (None, None, "wrote no reward file"),
        ("1", "1", "two verdicts"),
        ("", "", "two verdicts"),
    ],
)
def test_what_is_no_verdict(of_json: str | None, of_text: str | None, noted: str) -> None:
    with pytest.raises(ValueError, match=noted):
        read(of_json, of_text, "reward", "")


def test_what_is_a_verdict() -> None:
    assert read("1", None, "reward", "").value == 1.0
    assert read("true", None, "reward", "").value == 1.0
    assert read('{"reward": 0.5, "speed": [1]}', None, "reward", "").value == 0.5
    assert read('{"speed": -2}', None, "reward", "").value == -2.0
    assert read(None, " 0.25\n", "reward", "").value == 0.25
