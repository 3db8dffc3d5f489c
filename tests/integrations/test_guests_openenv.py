"""OpenEnv as a guest: environments in process, and servers that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import agentrl
from tests.integrations.guested import served, tasks

GAME = """\
from __future__ import annotations
from pydantic import BaseModel

class Guess(BaseModel):
    metadata: dict = {}
    number: int

class Word(BaseModel):
    word: str

class Seen(BaseModel):
    text: str
    reward: float | None = None
    done: bool = False
    metadata: dict = {}

class Numbers:
    def __init__(self, most=9):
        self.most = most
    def reset(self, seed=0):
        print("what an environment prints is no task")
        self.number = seed % self.most
        return Seen(text=f"A number below {self.most}?")
    def step(self, action: Guess) -> Seen:
        if action.number == self.number:
            return Seen(text="yes", reward=1.0, done=True)
        return Seen(text="no", reward=-0.25)

class Words:
    def reset(self):
        return Seen(text="Say please.")
    def step(self, action: Word) -> Seen:
        return Seen(text="", reward=float(action.word == "please"), done=True)

class Away(Words):
    def step(self, action: Word) -> Seen:
        raise ConnectionError("the shop is closed")

class Buggy(Words):
    def step(self, action: Word) -> Seen:
        return int("a bug of the environment")

class Broken(Words):
    def step(self, action: Word) -> Seen:
        raise KeyError("colour")
"""
SCRIPTS = """\
from agentrl import Say

def numbers(task, rng):
    yield Say(calls=[("act", {"number": 8})])
    yield Say(calls=[("act", {"number": "many"})])
    yield Say(calls=[("act", {"number": task.data["reset"]["seed"]})])
    yield Say("never said")

def words(task, rng):
    yield Say("please")
"""
RECIPE = """\
name: guest
tasks: {source: guest, args: {kind: openenv, spec: {env: "game:NAME", path: [./], n: 2, args: {}}}}
agent: {use: guest, max_turns: 6, format: hermes}
rewards: {guest: {}}
scripts: {numbers: ./scripts.py:numbers, words: ./scripts.py:words}
"""


def a_recipe(folder: Path, name: str) -> Path:
    (folder / "game.py").write_text(GAME)
    (folder / "scripts.py").write_text(SCRIPTS)
    (folder / "recipe.yaml").write_text(RECIPE.replace("NAME", name))
    return folder


def play(folder: Path, name: str, script: str, n: int = 2) -> Any:
    overrides = {"limits.user_errors": 9, "limits.service_failures": 9, "limits.retries": 0}
    recipe = a_recipe(folder, name)
    return agentrl.rollout(recipe, n, agent=script, out=folder / "run", overrides=overrides, reporters=())


def test_actions_with_fields_are_tool_calls(tmp_path: Path) -> None:
    run = play(tmp_path, "Numbers", "numbers")
    for episode in run.whole_episodes():
        assert (episode.status, len(episode.turns), episode.reward) == ("done", 3, 0.75)
        told = [message["content"] for turn in episode.turns for message in turn.observations]
        assert told[0] == "no"
        assert told[1].startswith("ValidationError")


def test_an_action_of_one_text_is_the_reply(tmp_path: Path) -> None:
    (episode,) = play(tmp_path, "Words", "words", 1).whole_episodes()
    assert (episode.reward, episode.answer) == (1.0, "please")


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("Away", "infra_error", "the shop is closed"),
        ("Broken", "user_error", "KeyError: 'colour'"),
        ("Buggy", "user_error", "invalid literal for int() with base 10: 'a bug of the environment'"),
    ],
)
def test_what_fails_in_the_environment(tmp_path: Path, name: str, status: str, said: str) -> None:
    run = play(tmp_path, name, "words", 1)
    failures = (run.dir.path / "failures.jsonl").read_text()
    assert status in failures
    assert said in failures


def test_only_so_many_tasks(tmp_path: Path) -> None:
    a_recipe(tmp_path, "Words")
    spec = {"env": "game:Words", "path": ["./"], "n": 100_000}
    assert [task.id for task in tasks(tmp_path, kind="openenv", n=2, spec=spec)] == ["Words-0", "Words-1"]


OPENENV = {
    "openenv.py": """\
from types import SimpleNamespace

CODES = {"fails": ("database is down", "EXECUTION_ERROR"), "refuses": ("Invalid message", "VALIDATION_ERROR")}

class GenericEnvClient:
    def __init__(self, base_url):
        self.way = base_url.rpartition("/")[2]
    async def connect(self):
        return self
    async def reset(self, **given):
        if self.way == "no-reset":
            raise RuntimeError("Server error: no machine is free (code: EXECUTION_ERROR)")
        return SimpleNamespace(observation={"text": "Say please."}, reward=None, done=False)
    async def step(self, action):
        if self.way in CODES:
            raise RuntimeError("Server error: {} (code: {})".format(*CODES[self.way]))
        reward = "lots" if self.way == "garbage" else 1.0
        return SimpleNamespace(observation={"text": "thanks"}, reward=reward, done=True)
    async def disconnect(self):
        pass
""",
}


class Schemas(BaseHTTPRequestHandler):
    """`/WAY/schema` of OpenEnv's servers."""

    def do_GET(self) -> None:
        action = {"title": "Please", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        said = b"<html>" if "/no-json/" in self.path else json.dumps({"action": action}).encode()
        self.send_response(500 if "/answers-500/" in self.path else 200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Schemas) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("fails", "database is down"),
        ("garbage", "could not convert string to float: 'lots'"),
        ("no-reset", "no machine is free"),
        ("answers-500", "HTTP Error 500"),
        ("no-json", "JSONDecodeError"),
    ],
)
def test_a_server_that_fails_is_no_reward_of_0(tmp_path: Path, server: str, way: str, said: str) -> None:
    run = served(tmp_path, "openenv", f"{server}/{way}", "null", OPENENV)
    failures = (run.dir.path / "failures.jsonl").read_text()
    assert ("infra_error" in failures, said in failures) == (True, True), failures


def test_what_a_server_refuses_is_told_to_the_model(tmp_path: Path, server: str) -> None:
    (episode,) = served(tmp_path, "openenv", f"{server}/refuses", "null", OPENENV).whole_episodes()
    told = [message["content"] for turn in episode.turns for message in turn.observations]
    assert (episode.reward, told[0].startswith("Server error: Invalid message")) == (0.0, True), told
