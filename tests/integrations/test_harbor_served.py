"""Recipes that Harbor's form cannot express: a server beside the agent has their tools and rewards."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from ruamel.yaml import YAML

from agentrl.api.export_harbor import export
from agentrl.api.recipes import given_recipe
from agentrl.types.errors import RecipeError
from tests.command import agentrl
from tests.images import png
from tests.integrations.test_driven import RECIPE, TASK
from tests.waiting import running_program, until_listening

pytestmark = pytest.mark.slow

PIXEL = base64.b64encode(png(1, 1)).decode()
PICTURES = f'''
    @tool
    def look(self):
        """Shows the door."""
        picture = base64.b64decode("{PIXEL}")
        return ToolResult("a door", images=[picture])

def oracle(task, rng):
    yield Say(calls=[("enter", {{"door": task.data["door"]}})])
    yield Say("I am in.")

def opened(info):
'''


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The doors of test_driven.py, which can also be looked at, exported."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "doors").mkdir()
    code = f"import base64\nfrom agentrl import Say, ToolResult\n{TASK}".replace("\ndef opened(info):\n", PICTURES)
    (folder / "doors" / "task.py").write_text(code)
    (folder / "doors" / "recipe.yaml").write_text(f"{RECIPE}scripts: {{oracle: ./task.py:oracle}}\n")
    run = agentrl(
        "env", "export", "doors", "--to", "harbor", "--out", "tasks", "--set", "agent.max_turns=4", cwd=folder
    )
    assert "3 tasks in tasks" in run.stdout
    assert "as the tool ./task.py:Doors exists only here" in run.stdout
    return folder / "tasks"


@contextmanager
def served(task: Path) -> Iterator[str]:
    """Starts the server of a task as its container would. Yields its address."""
    compose = YAML(typ="safe").load(task / "environment" / "docker-compose.yaml")
    service = compose["services"]["recipe"]
    assert compose["services"]["main"]["depends_on"] == {"recipe": {"condition": "service_healthy"}}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, str(task / "environment" / "recipe" / "server.py"), "--port", str(port)]
    environment = os.environ | service["environment"] | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with running_program(program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        until_listening(port, server)
        yield f"http://127.0.0.1:{port}"


def asked(task: Path, room: str, what: str, address: str) -> subprocess.CompletedProcess[str]:
    """Runs `ask.py` as the verifier or the solution of a task does."""
    environment = {"RECIPE_SERVER": address, "VERIFIER_LOGS": str(task / "logs"), "PATH": os.environ["PATH"]}
    command = ["python3", str(task / room / "ask.py"), what]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


async def played(address: str, play: Callable[[ClientSession], Awaitable[Any]]) -> Any:
    async with (
        streamable_http_client(f"{address}/mcp") as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        return await play(session)


def texts(result: Any) -> list[str]:
    return [part.text if part.type == "text" else part.mime_type for part in result.content]


async def test_an_agent_plays_over_mcp_and_the_verifier_gets_the_reward(tasks: Path) -> None:
    async def play(session: ClientSession) -> None:
        names = [each.name for each in (await session.list_tools()).tools]
        assert names == ["enter", "look", "show_task", "reply"]
        assert texts(await session.call_tool("show_task", {})) == ["Be quick.", "Open door 1."]
        assert texts(await session.call_tool("look", {})) == ["a door", "image/png"]
        assert "it is locked" in texts(await session.call_tool("enter", {"door": 0}))[0]
        assert "you are in" in texts(await session.call_tool("enter", {"door": 1}))[0]
        assert texts(await session.call_tool("reply", {"text": "I am in."})) == ["The task has ended."]
        assert texts(await session.call_tool("enter", {"door": 1})) == ["The task has ended."]

    with served(tasks / "t1") as address:
        await played(address, play)
        for what, secret in (("score", "nothing"), ("play", (tasks / "t1" / "tests" / "secret").read_text())):
            request = urllib.request.Request(f"{address}/{what}", b"", {"Authorization": f"Bearer {secret}"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(request)
        told = json.loads(asked(tasks / "t1", "tests", "score", address).stdout)
    assert told == {"reward": 1.0, "status": "done", "components": {"opened": 1.0}}
    assert (tasks / "t1" / "logs" / "reward.txt").read_text() == "1.0\n"


@pytest.mark.parametrize(("solved", "reward"), [(True, "1.0\n"), (False, "0.0\n")])
def test_the_oracle_gets_1_and_who_does_nothing_gets_0(tasks: Path, solved: bool, reward: str) -> None:
    with served(tasks / "t0") as address:
        if solved:
            assert asked(tasks / "t0", "solution", "play", address).returncode == 0
        assert asked(tasks / "t0", "tests", "score", address).returncode == 0
    assert (tasks / "t0" / "logs" / "reward.txt").read_text() == reward


def test_an_environment_that_breaks_gives_no_reward(tasks: Path) -> None:
    with served(tasks / "t2") as address:
        run = asked(tasks / "t2", "tests", "score", address)
    assert (run.returncode, "the house is away" in run.stderr) == (1, True)
    assert "cannot be reached" in asked(tasks / "t2", "tests", "score", address).stderr
    assert not (tasks / "t2" / "logs").exists()


def test_the_folder_of_a_task(tasks: Path) -> None:
    task = tasks / "t1"
    assert 'url = "http://recipe:8000/mcp"' in (task / "task.toml").read_text()
    assert (task / "instruction.md").read_text().startswith("Be quick.\n\nOpen door 1.\n\nThe tools of this task")
    environment = task / "environment"
    assert "secret" not in (environment / "Dockerfile").read_text().lower()
    assert (environment / "recipe" / "recipe" / "task.py").is_file()
    assert "privileged" not in (environment / "docker-compose.yaml").read_text()
    secrets = {path.read_text() for path in tasks.glob("*/*/secret")}
    assert len(secrets) == 6


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("agent={program: [python3, agent.py]}", "no other agent can take the place of a program"),
        ("tools=[./task.py:Doors, ./task.py:reply]", "the server has a tool reply of its own"),
    ],
)
def test_what_cannot_be_served(tasks: Path, tmp_path: Path, override: str, said: str) -> None:
    folder = tasks.parent / "doors"
    if "reply" in override:
        code = (folder / "task.py").read_text()
        (folder / "task.py").write_text(f'{code}\n@tool\ndef reply() -> str:\n    """Replies."""\n    return ""\n')
    with pytest.raises(RecipeError, match=said):
        export(str(folder), given_recipe(str(folder), [override]), [override], tmp_path / "out")
    assert not (tmp_path / "out").exists()
