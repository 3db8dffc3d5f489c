"""`agentrl program list`: programs of others that train unmodified, as the family `programs` trains them."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config.loader import load_recipe
from agentrl.proxy.web import DIALECTS
from agentrl.rollouts.programs.tried import TRIED, TriedProgram
from scripts.environments import REQUIREMENTS


def listed(*words: str) -> str:
    done = CliRunner().invoke(app, ["program", "list", *words], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return done.output


def test_each_program_is_listed_with_what_was_seen_and_the_command_that_trains_with_it() -> None:
    rows, text = json.loads(listed("--json")), listed()
    assert [row["name"] for row in rows] == [each.name for each in TRIED]
    for each, row in zip(TRIED, rows, strict=True):
        assert (row["version"], row["api"], tuple(row["drift"])) == (each.version, each.api, each.drift)
        assert re.search(rf"{re.escape(each.name)} +{re.escape(each.version)} +{each.registry} +{each.api}", text)
        assert f"\n  {row['command']}\n" in text


@pytest.mark.parametrize("tried", [pytest.param(each, id=each.name) for each in TRIED])
def test_the_command_of_a_program_sets_it(tried: TriedProgram) -> None:
    words = shlex.split(tried.command)
    assert words[:3] == ["agentrl", "train", "RECIPE"]
    assert {*words[3::2]} == {"--set"}
    recipe = {"name": "r", "tasks": {"jsonl": "t.jsonl", "prompt": "{n}"}, "model": {"path": "m"}}
    made = load_recipe({**recipe, "agent": {"max_turns": 3}}, words[4::2])
    agent = made.agent
    assert (agent.use, agent.max_turns) == ("program", 3)
    given = {key.removeprefix("agent."): value for key, value in tried.settings.items()}
    assert agent.settings["command"] == given["program"]
    assert agent.settings.get("env") == given.get("env")
    assert made.openings == given.get("openings", "same")
    assert tried.api in {dialect.name for dialect in DIALECTS}


def test_the_versions_are_those_that_the_tests_install() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (REQUIREMENTS / "programs.txt").read_text(), re.MULTILINE))
    asked = json.loads((REQUIREMENTS / "gemini-cli/package.json").read_text())["dependencies"]
    installed = {"PyPI": pins, "npm": asked}
    assert {each.name: installed[each.registry][each.name] for each in TRIED} == {e.name: e.version for e in TRIED}
    wanted = re.findall(r"^[\w.-]+", (REQUIREMENTS / "programs.in").read_text(), re.MULTILINE)
    assert {*wanted, *asked} - {"langchain-openai"} == {each.name for each in TRIED}
