"""OpenEnv's own package: MCP environments in process and served, a server that is full, and an exported recipe."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import agentrl
from tests.command import agentrl as command
from tests.integrations.guested import GUESTS, needs_guests
from tests.integrations.test_driven import RECIPE as DOORS
from tests.integrations.test_driven import TASK as DOORS_TASK
from tests.waiting import running_program, until, until_listening

ENVIRONMENTS = """\
import json
from fastapi import FastAPI, WebSocket
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import field_validator

class Asked(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("asked")

        @mcp.tool
        def look(place: str) -> dict:
            "What lies in a place."
            return {"place": place, "lies": "a key"}

        @mcp.tool
        def answer(what: str) -> str:
            "The final answer."
            return "noted"

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, **more):
        return Observation(metadata={"question": "What lies in the drawer?"})

    def _step_impl(self, action, timeout_s=None, **more):
        raise ValueError("no action")

    async def step_async(self, action, timeout_s=None, **more):
        seen = await super().step_async(action, timeout_s=timeout_s)
        if isinstance(action, CallToolAction) and action.tool_name == "answer":
            right = action.arguments.get("what") == "a key"
            return Observation(done=True, reward=float(right), metadata={"solution": "a key"})
        return seen

    @property
    def state(self):
        return State()

class JsonCall(CallToolAction):
    @field_validator("arguments", mode="before")
    @classmethod
    def parsed(cls, given):
        return json.loads(given) if isinstance(given, str) else given

class Pull(Action):
    lever: int
    force: float = 1.0

class Told(Observation):
    text: str

class Levers(Environment):
    def reset(self, seed=None, episode_id=None):
        return Told(text="Pull lever 3.")

    def step(self, action: Pull, timeout_s=None):
        return Told(text="", reward=float(action.lever == 3), done=True)

    @property
    def state(self):
        return State()

class Pulls(Levers):
    pulled = 0

    def step(self, action: Pull, timeout_s=None):
        self.pulled += 1
        return Told(text=f"pulled {self.pulled}", reward=1.0, done=self.pulled == 2)

ask = create_fastapi_app(Asked, CallToolAction, CallToolObservation, max_concurrent_envs=8)
ask_json = create_fastapi_app(Asked, JsonCall, CallToolObservation, max_concurrent_envs=8)
of_levers = create_fastapi_app(Levers, Pull, Told)

async def levers(scope, receive, send):
    \"\"\"Marks each session that is asked for.\"\"\"
    if scope["type"] == "websocket":
        with open("asked", "a") as file:
            file.write(".")
    await of_levers(scope, receive, send)
pulls = create_fastapi_app(Pulls, Pull, Told)

ODD = ["<html>", "[]", '{"type": "pong"}', '{"type": "observation", "data": {"observation": {}, "reward": "lots"}}']
odd = FastAPI()

@odd.get("/schema")
def schema():
    return {"action": Pull.model_json_schema()}

@odd.websocket("/ws")
async def ws(socket: WebSocket):
    await socket.accept()
    await socket.receive_text()
    await socket.send_json({"type": "observation", "data": {"observation": {"text": "Pull."}}})
    asked = await socket.receive_json()
    await socket.send_text(ODD[asked["data"]["lever"]])
"""
SCRIPTS = """\
from pathlib import Path
from agentrl import Say
from tests.waiting import until

def pulls(task, rng):
    \"\"\"The server is restarted in the middle.\"\"\"
    yield Say(calls=[("act", {"lever": 1})])
    (Path(__file__).parent / "restart").touch()
    until(lambda: not (Path(__file__).parent / "restart").exists())
    for _ in range(2):
        yield Say(calls=[("act", {"lever": 1})])

def asked(task, rng):
    heard = yield Say(calls=[("look", {"place": "drawer"})])
    assert "a key" in heard[-1]["content"], heard
    heard = yield Say(calls=[("look", {"spot": "drawer"})])
    assert "place" in heard[-1]["content"], heard
    yield Say(calls=[("answer", {"what": "a key"})])

def odd(task, rng):
    yield Say(calls=[("act", {"lever": task.data["reset"]["seed"]})])

def levers(task, rng):
    heard = yield Say(calls=[("act", {"lever": "the third"})])
    assert "lever" in heard[-1]["content"] and "integer" in heard[-1]["content"], heard
    yield Say(calls=[("act", {"lever": 3})])
"""


@contextmanager
def serving(folder: Path, *arguments: str, port: int) -> Iterator[str]:
    """A server in the Python of OpenEnv."""
    with subprocess.Popen([f"{GUESTS}/openenv/bin/python", "-m", *arguments], cwd=folder) as server:
        try:
            until_listening(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port: int = some.getsockname()[1]
        return port


def play(folder: Path, spec: dict[str, Any], script: str, out: str = "run", n: int = 1) -> Any:
    tasks = {"kind": "openenv", "python": f"{GUESTS}/openenv/bin/python", "spec": {**spec, "n": n, "path": ["./"]}}
    (folder / "recipe.yaml").write_text(
        f"name: openenv\ntasks: {{source: guest, args: {json.dumps(tasks)}}}\n"
        "agent: {use: guest, max_turns: 6, format: hermes}\nrewards: {guest: {}}\n"
        f"scripts: {{{script}: ./scripts.py:{script}}}\n"
    )
    overrides = {"limits.retries": 0, "limits.service_failures": 9}
    return agentrl.rollout(folder, n, script=script, out=folder / out, overrides=overrides, reporters=())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "envs.py").write_text(ENVIRONMENTS)
    (tmp_path / "scripts.py").write_text(SCRIPTS)
    return tmp_path


@needs_guests
@pytest.mark.timeout(300)
def test_tools_of_mcp_in_process(folder: Path) -> None:
    (episode,) = play(folder, {"env": "envs:Asked"}, "asked").whole_episodes()
    assert (episode.status, episode.reward) == ("done", 1.0), episode.error
    assert episode.prompt[-1]["content"] == "What lies in the drawer?"


@needs_guests
@pytest.mark.timeout(300)
@pytest.mark.parametrize("app", ["ask", "ask_json"], ids=["call of a tool", "a call that also reads JSON"])
def test_tools_of_mcp_served(folder: Path, app: str) -> None:
    port = free_port()
    with serving(folder, "uvicorn", f"envs:{app}", "--port", str(port), port=port) as url:
        (episode,) = play(folder, {"url": url}, "asked").whole_episodes()
    assert (episode.status, episode.reward) == ("done", 1.0), episode.error
    assert episode.prompt[-1]["content"] == "What lies in the drawer?"
    assert [tool["function"]["name"] for tool in episode.tools or ()] == ["look", "answer"]


HOLDS = """\
import asyncio, sys
from openenv import GenericEnvClient

async def main():
    async with GenericEnvClient(base_url=sys.argv[1]) as client:
        await client.reset()
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@needs_guests
@pytest.mark.timeout(300)
def test_an_episode_waits_for_a_place_on_a_server_that_has_one(folder: Path) -> None:
    """Most of OpenEnv's environments serve one session. What is wrong with an action is told to the model."""
    port, python = free_port(), f"{GUESTS}/openenv/bin/python"
    with (
        serving(folder, "uvicorn", "envs:levers", "--port", str(port), port=port) as url,
        running_program([python, "-c", HOLDS, url], stdin=subprocess.PIPE) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        failed = play(folder, {"url": url, "wait_s": 0}, "levers")
        assert "CAPACITY_REACHED" in (failed.dir.path / "failures.jsonl").read_text()
        asked, held = len((folder / "asked").read_text()), holder.stdin

        def leave() -> None:
            """Returns once the episode was refused and has come again."""
            until(lambda: len((folder / "asked").read_text()) > asked + 1)
            held.close()

        Thread(target=leave).start()
        (episode,) = play(folder, {"url": url}, "levers", out="waited").whole_episodes()
    assert (episode.status, episode.reward) == ("done", 1.0), episode.error


@needs_guests
@pytest.mark.timeout(300)
def test_an_answer_that_is_none_is_no_step(folder: Path) -> None:
    port = free_port()
    with serving(folder, "uvicorn", "envs:odd", "--port", str(port), port=port) as url:
        run = play(folder, {"url": url}, "odd", n=4)
    failures = [json.loads(line) for line in (run.dir.path / "failures.jsonl").read_text().splitlines()]
    assert [failure["status"] for failure in failures] == ["infra_error"] * 4, failures


@needs_guests
@pytest.mark.timeout(300)
def test_a_server_that_was_restarted_has_lost_the_episode(folder: Path) -> None:
    """OpenEnv's client connects again by itself, and would go on in another environment."""
    port, restart = free_port(), folder / "restart"
    arguments = ("uvicorn", "envs:pulls", "--port", str(port))

    def restarts() -> None:
        with serving(folder, *arguments, port=port):
            (folder / "up").touch()
            until(restart.exists)
        with serving(folder, *arguments, port=port):
            restart.unlink()
            ended.wait()

    ended, thread = Event(), Thread(target=restarts)
    thread.start()
    until((folder / "up").exists)
    try:
        run = play(folder, {"url": f"http://127.0.0.1:{port}", "wait_s": 0}, "pulls")
    finally:
        restart.touch()
        ended.set()
        thread.join()
    failures = (run.dir.path / "failures.jsonl").read_text()
    assert ("infra_error" in failures, "connection broke off" in failures) == (True, True), failures


CALLS = """\
import asyncio, json, sys
from openenv import GenericEnvClient

async def main(url):
    async with GenericEnvClient(base_url=url) as client:
        await client.reset(task=1)
        for calls in ([{"name": "enter", "arguments": "door 1"}], [{"arguments": {}}], ["enter"]):
            try:
                await client.step({"text": "", "calls": calls})
            except RuntimeError as error:
                print(error)
        seen = await client.step({"text": "", "calls": [{"name": "enter", "arguments": {"door": 1}}]})
        print(seen.observation["text"])
        print((await client.step({"text": "done"})).reward)

asyncio.run(main(sys.argv[1]))
"""


@needs_guests
@pytest.mark.timeout(300)
def test_a_call_that_is_none_is_refused_by_an_exported_server(tmp_path: Path) -> None:
    (tmp_path / "doors").mkdir()
    (tmp_path / "doors" / "task.py").write_text(DOORS_TASK)
    (tmp_path / "doors" / "recipe.yaml").write_text(DOORS)
    command("env", "export", "doors", "--to", "openenv", "--out", "served", cwd=tmp_path)
    (tmp_path / "calls.py").write_text(CALLS)
    port = free_port()
    with serving(tmp_path / "served", "server.app", "--port", str(port), port=port) as url:
        python = f"{GUESTS}/openenv/bin/python"
        said = subprocess.run([python, "calls.py", url], cwd=tmp_path, capture_output=True, text=True, check=True)
    *refused, entered, reward = said.stdout.splitlines()
    assert refused == ["Server error: Invalid message (code: VALIDATION_ERROR)"] * 3
    assert (entered, reward) == ("you are in", "1.0")
