"""The Open Reward Standard as a guest: a server, and servers that fail."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

import agentrl
from tests.integrations.guested import GUESTS, needs_guests, served
from tests.waiting import until_listening

ORS = {
    "ors/__init__.py": "",
    "ors/client.py": """\
from contextlib import asynccontextmanager
from types import SimpleNamespace

class ToolCallError(Exception):
    pass

class SessionTerminatedError(RuntimeError):
    pass

class MaxRetriesError(Exception):
    pass

FAILS = {
    "ended": SessionTerminatedError("Session terminated"),
    "answers-500": MaxRetriesError("Exceeded 5 retries for /call"),
    "tool-raises": RuntimeError("database is down"),
    "refuses": ToolCallError("'say' is not a valid tool"),
}

class AsyncORS:
    def __init__(self, base_url, api_key):
        self.way = base_url.rpartition("/")[2]
    def environment(self, name):
        return self
    async def list_tasks(self, split):
        return [{"a": 1}]
    @asynccontextmanager
    async def session(self, task):
        if self.way == "no-session":
            raise LookupError("no session")
        yield self
    async def get_prompt(self):
        return [SimpleNamespace(text="Say please.")]
    async def list_tools(self):
        return [SimpleNamespace(name="say", description="", input_schema={"type": "object", "properties": {}})]
    async def call_tool(self, name, given):
        if self.way in FAILS:
            raise FAILS[self.way]
        blocks, reward = [SimpleNamespace(text="thanks")], {"garbage": "lots", "nan": "nan"}.get(self.way, 1.0)
        return SimpleNamespace(blocks=blocks, reward=reward, finished=True)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("ended", "SessionTerminatedError: Session terminated"),
        ("answers-500", "MaxRetriesError: Exceeded 5 retries"),
        ("tool-raises", "RuntimeError: database is down"),
        ("no-session", "LookupError: no session"),
        ("nan", "its reward is nan"),
        ("garbage", "could not convert string to float: 'lots'"),
    ],
)
def test_a_server_that_fails_is_no_reward_of_0(tmp_path: Path, way: str, said: str) -> None:
    run = served(tmp_path, "ors", f"http://127.0.0.1:9/{way}", "please", ORS)
    failures = (run.dir.path / "failures.jsonl").read_text()
    assert ("infra_error" in failures, said in failures) == (True, True), failures


@pytest.mark.slow
def test_what_a_server_refuses_is_told_to_the_model(tmp_path: Path) -> None:
    (episode,) = served(tmp_path, "ors", "http://127.0.0.1:9/refuses", "please", ORS).whole_episodes()
    told = [message["content"] for turn in episode.turns for message in turn.observations]
    assert (episode.reward, told[0].startswith("ToolCallError: 'say' is not a valid tool")) == (0.0, True), told


ORS_SERVER = """\
import sys
from pydantic import BaseModel
from ors import Environment, Server, TextBlock, ToolOutput, tool

class Sum(BaseModel):
    total: int

class Adding(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]
    @classmethod
    def list_tasks(cls, split):
        return [{"a": k, "b": k + 1} for k in range(3)]
    def get_prompt(self):
        return [TextBlock(text=f"Add {self.task_spec['a']} and {self.task_spec['b']}.")]
    @tool
    async def answer(self, params: Sum) -> ToolOutput:
        right = params.total == self.task_spec["a"] + self.task_spec["b"]
        return ToolOutput(blocks=[TextBlock(text="right" if right else "wrong")], reward=float(right), finished=True)

Server([Adding]).run(port=int(sys.argv[1]))
"""


OPENREWARD_SERVER = """\
import sys
from pydantic import BaseModel
from openreward.environments import Environment, Server, TextBlock, ToolOutput, terminal, tool

class Place(BaseModel):
    place: str

class Said(BaseModel):
    said: str

class Looking(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]
    @classmethod
    def list_tasks(cls, split):
        return [{"lies": "a key"}, {"lies": "a coin"}]
    def get_prompt(self):
        return [TextBlock(text="What lies in the drawer?")]
    @tool
    async def look(self, params: Place) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text=self.task_spec["lies"])], reward=0.25, finished=False)
    @terminal
    @tool
    async def submit(self, params: Said) -> ToolOutput:
        right = params.said == self.task_spec["lies"]
        return ToolOutput(blocks=[TextBlock(text="noted")], reward=float(right), finished=True)

Server([Looking]).run(host="127.0.0.1", port=int(sys.argv[1]))
"""
ADDING_SCRIPTS = """\
from agentrl import Say

def total(task):
    return {"total": task.data["task"]["a"] + task.data["task"]["b"]}

def oracle(task, rng):
    yield Say(calls=[("answer", total(task))])

def twice(task, rng):
    yield Say(calls=[("answer", total(task)), ("answer", total(task))])
"""
LOOKING_SCRIPTS = """\
from agentrl import Say

def oracle(task, rng):
    heard = yield Say(calls=[("look", {"place": "drawer"})])
    yield Say(heard[-1]["content"])

def twice(task, rng):
    for _ in range(5):
        yield Say(calls=[("look", {"place": "drawer"}), ("look", {"place": "drawer"})])
"""


@needs_guests
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("server", "scripts", "env", "rewards"),
    [
        (ORS_SERVER, ADDING_SCRIPTS, "adding", {"oracle": 1.0, "twice": 1.0}),
        (OPENREWARD_SERVER, LOOKING_SCRIPTS, "looking", {"oracle": 1.25, "twice": 1.0}),
    ],
    ids=["ors: a tool ends the episode, once", "openreward: a reply ends it, or a limit, and every step pays"],
)
def test_a_server_of_the_open_reward_standard(
    tmp_path: Path, server: str, scripts: str, env: str, rewards: dict[str, float]
) -> None:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        free_port = some.getsockname()[1]
    python = f"{GUESTS}/openenv/bin/python"
    (tmp_path / "server.py").write_text(server)
    (tmp_path / "scripts.py").write_text(scripts)
    (tmp_path / "recipe.yaml").write_text(
        "name: ors\n"
        f"tasks: {{source: guest, args: {{kind: ors, python: {python},\n"
        f"  spec: {{url: 'http://127.0.0.1:{free_port}', env: {env}}}}}}}\n"
        "agent: {use: guest, format: hermes, max_turns: 2}\nrewards: {guest: {}}\n"
        "scripts: {oracle: ./scripts.py:oracle, twice: ./scripts.py:twice}\n"
    )
    with subprocess.Popen([python, "server.py", str(free_port)], cwd=tmp_path) as process:
        try:
            until_listening(free_port, process)
            for script, reward in rewards.items():
                run = agentrl.rollout(tmp_path, 2, script=script, out=tmp_path / script, reporters=())
                assert [episode.reward for episode in run.whole_episodes()] == [reward] * 2, script
        finally:
            process.kill()
