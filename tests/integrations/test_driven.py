"""Episodes that are driven from outside, and the server of OpenEnv that is made of them."""

from __future__ import annotations

import gc
import runpy
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl import Say
from agentrl.api.from_outside import Driven
from agentrl.types.errors import AgentRLError
from tests.command import agentrl

TASK = '''
from agentrl import Task
from agentrl.tools.base import Environment, tool
from agentrl.types.errors import ToolError

def tasks(n=3):
    for k in range(n):
        yield Task.of(f"t{k}", f"Open door {k}.", door=k)

class Doors(Environment):
    def open(self, task, sandbox):
        if task.data["door"] == 2:
            raise ConnectionError("the house is away")
        self.door = task.data["door"]
        self.info["opened"] = False

    @tool
    def enter(self, door: int) -> str:
        """Opens a door."""
        if door != self.door:
            raise ToolError("it is locked")
        self.info["opened"] = True
        return "you are in"

def opened(info):
    return float(info["opened"])
'''
RECIPE = """
name: doors
tasks: ./task.py:tasks
agent: {max_turns: 3, format: hermes, system: Be quick.}
tools: [./task.py:Doors]
rewards: {opened: ./task.py:opened}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doors").mkdir()
    (tmp_path / "doors" / "task.py").write_text(TASK)
    (tmp_path / "doors" / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "doors"


@pytest.fixture
def driven(folder: Path) -> Iterator[Driven]:
    made = Driven(folder)
    yield made
    made.close()


@pytest.mark.slow
def test_to_close_ends_what_is_played(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Driven(folder)
    given_up, left = made.session(), made.session()
    for session in (given_up, left):
        session.reset(0)
    given_up.close()
    made.close()
    del made, given_up, left, session  # a task that nobody ended says so when it is freed
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread.name == "agentrl-driven"] == []
    assert [record.message for record in caplog.records if "pending" in record.message] == []


def test_an_episode_is_driven_by_calls_and_by_text(driven: Driven) -> None:
    session = driven.session()
    seen = session.reset(1)
    assert [message["role"] for message in seen.messages] == ["system", "user"]
    assert [each["function"]["name"] for each in seen.tools] == ["enter"]
    seen = session.step(Say(calls=[("enter", {"door": 0})]))
    assert "it is locked" in str(seen.messages[-1]["content"])
    assert (seen.done, seen.reward) == (False, 0.0)
    seen = session.step(Say('<tool_call>{"name": "enter", "arguments": {"door": 1}}</tool_call>'))
    assert "you are in" in str(seen.messages[-1]["content"])
    seen = session.step(Say("I am in."))
    assert seen.episode is not None
    assert (seen.done, seen.reward, seen.episode.status) == (True, 1.0, "done")
    with pytest.raises(AgentRLError, match="no episode is played"):
        session.step(Say("again"))


def test_sessions_do_not_see_each_other_and_a_limit_ends_an_episode(driven: Driven) -> None:
    one, two = driven.session(), driven.session()
    one.reset(0)
    two.reset(1)
    one.step(Say(calls=[("enter", {"door": 0})]))
    assert two.step(Say("done")).reward == 0.0
    for _ in range(2):
        seen = one.step(Say(calls=[("enter", {"door": 5})]))
    assert seen.episode is not None
    assert (seen.done, seen.reward, seen.episode.status) == (True, 1.0, "truncated")
    one.reset(1)
    one.reset(0)  # the first is given up
    assert one.step(Say("done")).reward == 0.0
    one.close()


def test_an_environment_that_breaks_is_an_error_and_no_reward(driven: Driven) -> None:
    session = driven.session()
    with pytest.raises(AgentRLError, match="the house is away"):
        session.reset(2)
    assert session.reset(0).messages


@pytest.mark.parametrize(
    "said",
    [
        Say("<enter>7</enter> and more, which no model could have sampled"),
        Say("</enter>" * 3),
        Say(calls=[("no name", {"a\0": "\ud800"})]),
        Say("half \ud800 a character"),
        Say(calls=[("enter", {"door": float("nan")})]),
        Say(calls=[("enter", {"door": 7}), ("enter", {"door": 7})]),
    ],
)
@pytest.mark.parametrize("format", ["tags", "pythonic", "harmony"])
def test_nothing_that_is_said_ends_an_episode_without_a_reward(folder: Path, said: Say, format: str) -> None:
    """Whoever drives it from outside would be rid of it."""
    made = Driven(folder, [f"agent.format={format}"])
    try:
        session = made.session()
        session.reset(1)
        seen = session.step(said)
        while not seen.done:
            seen = session.step(Say(""))
        assert seen.episode is not None
        assert (seen.episode.error, seen.reward) == (None, 0.0)
    finally:
        made.close()


@pytest.mark.slow
def test_the_server_is_written_with_the_recipe_and_its_overrides(folder: Path) -> None:
    more = ("--to", "openenv", "--out", "served", "--set", "agent.max_turns=2")
    told = agentrl("env", "export", "doors", *more, cwd=folder.parent)
    assert told.stdout == f"a server in served: {Path('served', 'README.md')} says how to start it\n"
    served = folder.parent / "served"
    assert (served / "recipe" / "task.py").read_text() == TASK
    app = (served / "server" / "app.py").read_text()
    assert "OVERRIDES: list[str] = ['agent.max_turns=2']" in app
    assert '"recipe" / "recipe.yaml"' in app
    compile(app, "app.py", "exec")
    assert "name: doors" in (served / "openenv.yaml").read_text()
    assert '"--host", default="127.0.0.1"' in app
    assert "recipe/README.md" not in (served / "README.md").read_text()
    again = agentrl("env", "export", "doors", *more, "--json", cwd=folder.parent, ok=False)
    assert again.returncode != 0
    assert "there is a served already" in again.stdout + again.stderr


@pytest.mark.slow
def test_a_recipe_that_does_not_stand_alone_is_refused(folder: Path) -> None:
    (folder.parent / "rows.jsonl").write_text('{"q": "Open door 0.", "door": 0}\n')
    recipe = RECIPE.replace("./task.py:tasks", '{jsonl: ../rows.jsonl, prompt: "{q}"}')
    (folder / "recipe.yaml").write_text(recipe)
    more = ("--to", "openenv", "--out", "served")
    told = agentrl("env", "export", "doors", *more, cwd=folder.parent, ok=False)
    assert told.returncode == 1
    assert "the recipe does not stand alone" in told.stderr
    assert "rows.jsonl" in told.stderr
    assert not (folder.parent / "served").exists()


@pytest.mark.slow
def test_the_readme_of_a_recipe_is_named_where_there_is_one(folder: Path) -> None:
    (folder / "README.md").write_text("pip install doors\n")
    agentrl("env", "export", "doors", "--to", "openenv", "--out", "served", cwd=folder.parent)
    assert "and what recipe/README.md names" in (folder.parent / "served" / "README.md").read_text()


class _Any:
    """Stands in for the classes of openenv-core, which is not installed here."""

    def __init__(self, **given: object) -> None:
        vars(self).update(given)


@pytest.mark.slow
def test_a_server_refuses_a_task_that_is_not_there_and_takes_any_seed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agentrl("env", "export", "doors", "--to", "openenv", "--out", "served", cwd=folder.parent)
    stand_ins: dict[str, dict[str, object]] = {
        "uvicorn": {},
        "openenv.core.env_server.http_server": {"create_fastapi_app": lambda *_, **__: None},
        "openenv.core.env_server.interfaces": {"Environment": _Any},
        "openenv.core.env_server.types": {"State": _Any},
        "models": {"RecipeAction": _Any, "RecipeObservation": _Any},
    }
    for name, content in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    app = runpy.run_path(str(folder.parent / "served" / "server" / "app.py"))
    environment = app["RecipeEnvironment"]()
    try:
        for task in (3, 99, -1):
            with pytest.raises(AgentRLError, match=rf"(?s)there is no task {task}.*give 0 to 2"):
                environment.reset(task=task)
        assert "door 1" in environment.reset(task=1).text
        assert "door 0" in environment.reset(seed=99).text
        assert "door 1" in environment.reset().text
    finally:
        app["DRIVEN"].close()
