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
from agentrl.types.errors import TaskError
from tests.integrations.guested import packages, served, tasks

pytestmark = pytest.mark.slow

GAME = """\
from __future__ import annotations
import asyncio
import random
from enum import Enum
from typing import Any, Generic, TypeVar
import numpy as np
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

class Drawn(Words):
    "Draws its task when it is made and when it is reset, without a seed."
    def __init__(self):
        self.first, self.also = random.random(), np.random.random()
    def reset(self):
        return Seen(text=f"{self.first} {self.also} {random.random()}")
    def step(self, action: Word) -> Seen:
        return Seen(text="", reward=random.random(), done=True)

class Away(Words):
    def step(self, action: Word) -> Seen:
        raise ConnectionError("the shop is closed")

class Buggy(Words):
    def step(self, action: Word) -> Seen:
        return int("a bug of the environment")

class Broken(Words):
    def step(self, action: Word) -> Seen:
        raise KeyError("colour")

class Side(str, Enum):
    LEFT = "left"
    RIGHT = "right"

class Turn(BaseModel):
    side: Side

class Sides(Words):
    def step(self, action: Turn) -> Seen:
        return Seen(text="", reward=float(action.side is Side.LEFT), done=True)

class Order(BaseModel):
    order: Word

class Orders(Words):
    def step(self, a: Order) -> Seen:
        return Seen(text="", reward=float(a.order.word == "please"), done=True)

A = TypeVar("A")

class Any1(Generic[A]):
    def step(self, action: A) -> Seen:
        return Seen(text="", reward=float(action.word == "please"), done=True)

class OfAWord(Any1[Word], Words):
    pass

class Later(Words):
    async def reset(self):
        return Seen(text="Say please.")
    async def step(self, action: Word) -> Seen:
        await asyncio.sleep(0)
        return Seen(text="", reward=float(action.word == "please"), done=True)

class Loops(Words):
    def step(self, action: Word) -> Seen:
        asyncio.run(asyncio.sleep(0))
        return super().step(action)

class Action(BaseModel):
    metadata: dict = {}

class Untyped(Words):
    def step(self, action: Action) -> Seen:
        return Seen(text="")

class Pixels(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    grid: Any
    shot: str
    side: Side = Side.LEFT
    done: bool = False
    metadata: dict = {}

class Screen(Words):
    def reset(self, level=0):
        return Pixels(grid=np.zeros((2, 600), dtype=int), shot="iVBORw0KGgo" + "A" * 999)

class Quiet(Words):
    def __init__(self, done=False):
        self.done = done
    def reset(self):
        seen = Seen(text="", done=self.done, reward=0.25, metadata={"question": "Say please?"})
        return seen.model_copy(update={"text": None})

class Nan(Words):
    def step(self, action: Word) -> Seen:
        return Seen(text="", reward=float("nan"), done=True)
"""
SCRIPTS = """\
from agentrl import Say

def numbers(task, rng):
    yield Say(calls=[("act", {"number": 8})])
    yield Say(calls=[("act", {"number": "many"})])
    yield Say(calls=[("act", {"number": task.data["reset"]["seed"]})])
    yield Say("never said")

def astray(task, rng):
    while True:
        yield Say(calls=[("act", {"number": 8})])

def words(task, rng):
    yield Say("please")

def act(task, rng):
    said = {"Sides": {"side": "left"}, "Orders": {"order": {"word": "please"}}}
    yield Say(calls=[("act", said[task.id.partition("-")[0]])])
"""
RECIPE = """\
name: guest
tasks: {source: guest, args: {kind: openenv, spec: {env: "game:NAME", path: [./], n: 2, args: ARGS}}}
agent: {use: guest, max_turns: 6, format: hermes}
rewards: {guest: {}}
scripts: {numbers: ./scripts.py:numbers, astray: ./scripts.py:astray, words: ./scripts.py:words, act: ./scripts.py:act}
"""


def a_recipe(folder: Path, name: str, args: str = "{}") -> Path:
    (folder / "game.py").write_text(GAME)
    (folder / "scripts.py").write_text(SCRIPTS)
    (folder / "recipe.yaml").write_text(RECIPE.replace("NAME", name).replace("ARGS", args))
    return folder


def play(folder: Path, name: str, script: str, n: int = 2, args: str = "{}") -> Any:
    overrides = {"limits.user_errors": 9, "limits.service_failures": 9, "limits.retries": 0}
    recipe = a_recipe(folder, name, args)
    return agentrl.rollout(recipe, n, script=script, out=folder / "run", overrides=overrides, reporters=())


def test_actions_with_fields_are_tool_calls(tmp_path: Path) -> None:
    run = play(tmp_path, "Numbers", "numbers")
    for episode in run.whole_episodes():
        assert (episode.status, len(episode.turns), episode.reward) == ("done", 3, 0.75)
        told = [message["content"] for turn in episode.turns for message in turn.observations]
        assert told[0] == "no"
        assert told[1].startswith("ValidationError")


def test_rewards_of_steps_count_where_a_limit_ends_the_episode(tmp_path: Path) -> None:
    """Else a policy that gets a penalty for each step would best never reach the end."""
    (episode,) = play(tmp_path, "Numbers", "astray", 1).whole_episodes()
    assert (episode.status, len(episode.turns), episode.reward) == ("truncated", 6, -1.5)


def test_an_action_of_one_text_is_the_reply(tmp_path: Path) -> None:
    (episode,) = play(tmp_path, "Words", "words", 1).whole_episodes()
    assert (episode.reward, episode.answer) == (1.0, "please")


@pytest.mark.parametrize("forks", [True, False])
def test_a_framework_is_imported_once_if_it_can_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forks: bool
) -> None:
    """Once to list the tasks, once for all episodes. One that starts a thread is imported by each episode."""
    thread = "import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()"
    installed = packages(tmp_path / "installed", {
        "openenv/core/env_server/mcp_environment.py": f"open({str(tmp_path / 'imports')!r}, 'a').write('x')\n"
        + ("" if forks else thread)
    })  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(installed))
    episodes = list(play(tmp_path, "Words", "words", 5).whole_episodes())
    assert [(e.status, e.reward) for e in episodes] == [("done", 1.0)] * 5
    assert len((tmp_path / "imports").read_text()) == (2 if forks else 2 + 5)
    assert ("each episode imports its framework: of_openenv starts a thread" in caplog.text) != forks


def test_a_module_that_the_recipe_warms_must_be_there(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path, "Words")
    (recipe / "recipe.yaml").write_text(
        (recipe / "recipe.yaml").read_text().replace("max_turns", "warm: [gone], max_turns")
    )
    run = agentrl.rollout(recipe, 1, script="words", out=tmp_path / "run", reporters=())
    (episode,) = run.whole_episodes()
    assert episode.status == "user_error"
    assert "gone cannot be imported: ModuleNotFoundError" in str(episode.error)


def test_a_class_without_a_seed_gives_a_group_one_task(tmp_path: Path) -> None:
    overrides = {"limits.retries": 0}
    recipe = a_recipe(tmp_path, "Drawn")
    run = agentrl.rollout(
        recipe, 6, group_size=3, script="words", out=tmp_path / "run", overrides=overrides, reporters=()
    )
    found: dict[str, set[str]] = {}
    for episode in run.whole_episodes():
        found.setdefault(episode.task.id, set()).add(str(episode.prompt))
    assert {len(prompts) for prompts in found.values()} == {1}
    assert len({prompt for prompts in found.values() for prompt in prompts}) == 2
    assert len({episode.reward for episode in run.whole_episodes()}) > 2  # the rest is by chance


@pytest.mark.parametrize(
    ("name", "script"),
    [("Sides", "act"), ("Orders", "act"), ("OfAWord", "words"), ("Later", "words"), ("Loops", "words")],
)
def test_actions_and_methods_as_environments_have_them(tmp_path: Path, name: str, script: str) -> None:
    """A choice, an object in an object, an action by a type variable, async methods, an event loop of its own."""
    (episode,) = play(tmp_path, name, script, 1).whole_episodes()
    assert (episode.status, episode.reward) == ("done", 1.0), episode.error


def test_the_choices_of_an_action_are_shown(tmp_path: Path) -> None:
    (episode,) = play(tmp_path, "Sides", "act", 1).whole_episodes()
    (tool,) = episode.tools or ()
    assert tool["function"]["parameters"]["properties"]["side"]["enum"] == ["left", "right"]


def test_what_an_observation_holds_beside_text(tmp_path: Path) -> None:
    (episode,) = play(tmp_path, "Screen", "words", 1).whole_episodes()
    seen = json.loads(episode.prompt[-1]["content"])
    assert seen == {"grid": [[0] * 600] * 2, "shot": "[image]", "side": "left"}


def test_an_observation_of_metadata_only_is_shown(tmp_path: Path) -> None:
    (episode,) = play(tmp_path, "Quiet", "words", 1).whole_episodes()
    assert (episode.prompt[-1]["content"], episode.reward) == ("Say please?", 1.25)


def test_an_episode_that_is_over_at_its_beginning(tmp_path: Path) -> None:
    (episode,) = play(tmp_path, "Quiet", "words", 1, "{done: true}").whole_episodes()
    assert (episode.status, episode.error is None) == ("user_error", False)
    assert "over before its first turn: reset({'seed': 0}) says done" in str(episode.error)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("Nan", "user_error", "the environment's reward is nan"),
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


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"env": "game:Untyped"}, "Untyped.step does not say which action it takes .*: give spec.action"),
        ({"env": "game:Nothing"}, "game has no Nothing"),
        ({"env": "games:Words"}, "there is no module games: spec.path names the folder"),
        ({"env": "game:Screen", "resets": [{"level": 1}, {"lewel": 2}]}, r"Screen.reset takes no 'lewel': \['level'\]"),
    ],
)
def test_a_class_that_cannot_be_used(tmp_path: Path, spec: dict[str, Any], said: str) -> None:
    a_recipe(tmp_path, "Words")
    with pytest.raises(TaskError, match=said):
        tasks(tmp_path, kind="openenv", spec={**spec, "path": ["./"]})


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
