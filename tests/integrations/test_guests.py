"""Environments of other frameworks in processes of their own: played, scored, and what goes wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import agentrl
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.integrations import guests
from agentrl.types.errors import TaskError
from agentrl.types.task import Task

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


def tasks(folder: Path, **args: Any) -> list[Task]:
    return load_tasks(TaskSettings(source="guest", args=args), folder, seed=0).tasks


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"kind": "gymnasium"}, r"no kind 'gymnasium'"),
        ({"kind": "openenv", "python": ".venv-none/bin/python"}, r"(?s)no interpreter .*venv-none.*-m venv"),
        (
            {"kind": "inspect", "spec": {"task": "x"}},
            "inspect_ai is not installed there: .* -m pip install",
        ),
        ({"kind": "openenv", "spec": {}}, "OpenEnv needs spec: {env: package.module:Class}, or {url"),
    ],
)
def test_what_cannot_be_listed(tmp_path: Path, args: dict[str, Any], expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        tasks(tmp_path, **args)


INSPECT = {
    "inspect_ai/__init__.py": "",
    "inspect_ai/_util/__init__.py": "",
    "inspect_ai/_util/error.py": """\
class PrerequisiteError(Exception):
    def __init__(self, message):
        self.message = message
""",
    "inspect_ai/_eval/__init__.py": "",
    "inspect_ai/_eval/loader.py": """\
import time
from types import SimpleNamespace
from inspect_ai._util.error import PrerequisiteError

def load_tasks(names, args):
    if names[0] == "unknown.py@one":
        raise PrerequisiteError("Task named 'one' not found.")
    if names[0] == "away.py@one":
        open("away.py")
    print("downloading " * 20_000)
    time.sleep(args.get("sleep_s", 0))
    sample = SimpleNamespace(input="1+1?", target="2", id=1)
    return [SimpleNamespace(dataset=[sample])]
""",
}
OPENAI = {"openai.py": ""}


def packages(folder: Path, files: dict[str, str]) -> Path:
    """Modules that stand for a framework."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def of_inspect(folder: Path, files: dict[str, str], **spec: Any) -> list[Task]:
    """The tasks, listed by a Python that has no package but these."""
    packages(folder, files | {"python": f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n'})
    (folder / "python").chmod(0o755)
    return tasks(folder, kind="inspect", python="./python", spec={"path": ["./"], **spec})


@pytest.mark.timeout(60)
def test_a_framework_may_print_more_than_a_pipe_holds(tmp_path: Path) -> None:
    listed = of_inspect(tmp_path, INSPECT | OPENAI, task="sums.py@add")
    assert [task.id for task in listed] == ["add-1"]


@pytest.mark.timeout(60)
def test_a_list_of_tasks_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "LIST_S", 2.0)
    with pytest.raises(TaskError, match=r"took more than 2 s. Its last lines: .*downloading"):
        of_inspect(tmp_path, INSPECT | OPENAI, task="sums.py@add", args={"sleep_s": 50})


@pytest.mark.parametrize(
    ("files", "task", "expected"),
    [
        ({}, "sums.py@add", "inspect_ai is not installed there: .* -m pip install inspect-ai openai"),
        (INSPECT, "sums.py@add", "openai is not installed there: .* -m pip install openai"),
        (INSPECT | OPENAI, "inspect_evals/sums", "inspect_evals is not installed there: .* pip install inspect-evals"),
        (INSPECT | OPENAI, "unknown.py@one", "^[^\n]*unknown.py@one cannot be loaded: Task named 'one' not found"),
        (
            INSPECT | OPENAI,
            "away.py@one",
            "^[^\n]*away.py@one cannot be loaded: .*No such file",
        ),
    ],
    ids=["without inspect_ai", "without openai", "without inspect-evals", "unknown task", "unknown file"],
)
def test_what_inspect_cannot_load(tmp_path: Path, files: dict[str, str], task: str, expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        of_inspect(tmp_path, files, task=task)


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
        blocks, reward = [SimpleNamespace(text="thanks")], "lots" if self.way == "garbage" else 1.0
        return SimpleNamespace(blocks=blocks, reward=reward, finished=True)
""",
}
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
SERVED = """\
name: served
tasks: {source: guest, args: {kind: KIND, spec: {url: "URL", env: NAME, path: [./]}}}
agent: {use: guest, max_turns: 2, format: hermes}
rewards: {guest: {}}
scripts: {say: ./scripts.py:say}
"""
SAYS = """\
from agentrl import Say

def say(task, rng):
    for _ in range(2):
        yield Say(calls=[("say", {})])
"""


def served(folder: Path, kind: str, url: str) -> Any:
    """One episode against a server of this kind."""
    packages(folder, {"ors": ORS, "openenv": OPENENV}[kind] | {"scripts.py": SAYS})
    name = {"ors": "please", "openenv": "null"}[kind]
    recipe = SERVED.replace("KIND", kind).replace("URL", url).replace("NAME", name)
    (folder / "recipe.yaml").write_text(recipe)
    overrides = {"limits.service_failures": 9, "limits.user_errors": 9, "limits.retries": 0}
    return agentrl.rollout(folder, 1, agent="say", out=folder / "run", overrides=overrides, reporters=())


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
    ("kind", "way", "said"),
    [
        ("ors", "ended", "SessionTerminatedError: Session terminated"),
        ("ors", "answers-500", "MaxRetriesError: Exceeded 5 retries"),
        ("ors", "tool-raises", "RuntimeError: database is down"),
        ("ors", "no-session", "LookupError: no session"),
        ("ors", "garbage", "could not convert string to float: 'lots'"),
        ("openenv", "fails", "database is down"),
        ("openenv", "garbage", "could not convert string to float: 'lots'"),
        ("openenv", "no-reset", "no machine is free"),
        ("openenv", "answers-500", "HTTP Error 500"),
        ("openenv", "no-json", "JSONDecodeError"),
    ],
)
def test_a_server_that_fails_is_no_reward_of_0(tmp_path: Path, server: str, kind: str, way: str, said: str) -> None:
    run = served(tmp_path, kind, f"{server}/{way}")
    failures = (run.dir.path / "failures.jsonl").read_text()
    assert ("infra_error" in failures, said in failures) == (True, True), failures


@pytest.mark.parametrize(
    ("kind", "said"),
    [("ors", "ToolCallError: 'say' is not a valid tool"), ("openenv", "Server error: Invalid message")],
)
def test_what_a_server_refuses_is_told_to_the_model(tmp_path: Path, server: str, kind: str, said: str) -> None:
    (episode,) = served(tmp_path, kind, f"{server}/refuses").whole_episodes()
    told = [message["content"] for turn in episode.turns for message in turn.observations]
    assert (episode.reward, told[0].startswith(said)) == (0.0, True), told


def test_only_so_many_tasks(tmp_path: Path) -> None:
    a_recipe(tmp_path, "Words")
    spec = {"env": "game:Words", "path": ["./"], "n": 100_000}
    assert [task.id for task in tasks(tmp_path, kind="openenv", n=2, spec=spec)] == ["Words-0", "Words-1"]


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
GUESTS = os.environ.get("AGENTRL_TEST_GUESTS")


@pytest.mark.skipif(GUESTS is None, reason="needs environments of other frameworks: make test-guests")
def test_a_server_of_the_open_reward_standard(tmp_path: Path) -> None:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        free_port = some.getsockname()[1]
    python = f"{GUESTS}/openenv/bin/python"
    (tmp_path / "server.py").write_text(ORS_SERVER)
    (tmp_path / "scripts.py").write_text(
        "from agentrl import Say\n\ndef oracle(task, rng):\n"
        '    given = task.data["task"]\n    yield Say(calls=[("answer", {"total": given["a"] + given["b"]})])\n'
    )
    (tmp_path / "recipe.yaml").write_text(
        "name: ors\n"
        f"tasks: {{source: guest, args: {{kind: ors, python: {python},\n"
        f"  spec: {{url: 'http://127.0.0.1:{free_port}', env: adding}}}}}}\n"
        "agent: {use: guest, format: hermes}\nrewards: {guest: {}}\nscripts: {oracle: ./scripts.py:oracle}\n"
    )
    with subprocess.Popen([python, "server.py", str(free_port)], cwd=tmp_path) as server:
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", free_port)):
                    break
                assert server.poll() is None
                time.sleep(0.2)
            run = agentrl.rollout(tmp_path, 3, agent="oracle", out=tmp_path / "run", reporters=())
            assert [episode.reward for episode in run.whole_episodes()] == [1.0] * 3
        finally:
            server.kill()


VERIFIERS_ENVIRONMENT = """\
import random
import verifiers as vf
from datasets import Dataset

def add(a: int, b: int) -> int:
    \"\"\"Adds two numbers.\"\"\"
    return a + b

def right(completion, answer):
    used = any(message.role == "tool" for message in completion)
    return float(used and (completion[-1].content or "").strip() == answer)

def load_environment(n=3):
    pairs = [(random.randrange(99), random.randrange(99)) for _ in range(n)]
    rows = [{"question": f"Add {a} and {b}.", "answer": str(a + b), "info": {"a": a, "b": b}} for a, b in pairs]
    return vf.ToolEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right]), tools=[add], max_turns=4)
"""


STATEFUL_ENVIRONMENT = """\
import verifiers as vf
from datasets import Dataset

class Bank(vf.StatefulToolEnv):
    def __init__(self, **more):
        super().__init__(tools=[], **more)
        self.add_tool(self.pay, args_to_skip=["account"])
    async def setup_state(self, state):
        await super().setup_state(state)
        state["account"] = {"left": state["info"]["left"]}
    def update_tool_args(self, tool_name, tool_args, messages, state, **more):
        return {**tool_args, "account": state["account"]}
    async def pay(self, sum: int, account: dict) -> str:
        \"\"\"Pays from your account.

        Args:
            sum: How much.
        \"\"\"
        account["left"] -= sum
        return f"{account['left']} left"

async def empty(state):
    return float(state["account"]["left"] == 0)

def load_environment():
    rows = [{"question": f"You have {left}. Pay all.", "info": {"left": left}} for left in (5, 8)]
    return Bank(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[empty]), max_turns=4)
"""
STATEFUL_SCRIPTS = """\
from agentrl import Say

def oracle(task, rng):
    heard = yield Say(calls=[("pay", {"sum": 2})])
    assert heard[-1]["content"] == f"{task.data['info']['left'] - 2} left"
    yield Say(calls=[("pay", {"sum": task.data["info"]["left"] - 2})])
    yield Say("Paid.")

def guess(task, rng):
    yield Say("Paid.")
"""
VERIFIERS_SCRIPTS = """\
from agentrl import Say

def oracle(task, rng):
    yield Say(calls=[("add", task.data["info"])])
    yield Say(task.data["answer"])

def guess(task, rng):
    yield Say(task.data["answer"])
"""
TASKSET = """\
import itertools
import verifiers.v1 as vf

class Box(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "box"

    @vf.tool
    def look(self, number: int) -> str:
        \"\"\"What is in a box.\"\"\"
        return f"a {number * number}"

class InBox(vf.TaskData):
    answer: str

class Boxes(vf.Task[InBox, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Box(vf.ToolsetConfig())]

    @vf.reward(weight=1.0)
    async def found(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))

class BoxConfig(vf.TasksetConfig):
    most: int | None = None

class BoxTaskset(vf.Taskset[Boxes, BoxConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count(2):
            data = InBox(idx=0, prompt=f"What is in box {number}?", answer=f"a {number * number}")
            yield Boxes(data, vf.TaskConfig())

__all__ = ["BoxTaskset"]

if __name__ == "__main__":
    Box.run()
"""
TASKSET_SCRIPTS = """\
from agentrl import Say

def oracle(task, rng):
    heard = yield Say(calls=[("box_look", {"number": task.data["info"]["idx"] + 2})])
    yield Say(f"It is {heard[-1]['content']}.")

def guess(task, rng):
    yield Say("A cat.")
"""
SEATS = """\
import verifiers.v1 as vf

class Seats(vf.EnvConfig):
    asker: vf.AgentConfig = vf.AgentConfig()
    teller: vf.AgentConfig = vf.AgentConfig()

class Seated(vf.Env[Seats]):
    async def run(self, task, agents):
        async with agents.asker.interaction(task) as asker:
            question = (await asker.turn()).last_reply
        told = vf.Task(vf.TaskData(idx=0, prompt=f"You are asked: {question}"))
        async with agents.teller.interaction(told) as teller:
            answer = (await teller.turn()).last_reply
        asker.trace.record_reward("asked", float(question.endswith("?")))
        teller.trace.record_reward("told", float(answer == "blue") / 2)

class Asked(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass

class Asking(vf.Taskset[Asked, vf.TasksetConfig]):
    def load(self):
        return [Asked(vf.TaskData(idx=0, prompt="Ask for a colour."), vf.TaskConfig())]

__all__ = ["Asking", "Seated"]
"""
SEATS_SCRIPTS = """\
from agentrl import Say

def oracle(task, rng, messages):
    yield Say("Which colour?" if "Ask" in messages[-1]["content"] else "blue")
    yield Say("blue")

def guess(task, rng):
    yield Say("Hm.")
    yield Say("Hm.")
"""


@pytest.mark.skipif(GUESTS is None, reason="needs environments of other frameworks: make test-guests")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("python", "spec", "module", "scripts", "key", "rewards"),
    [
        ("verifiers", "environment: guested", VERIFIERS_ENVIRONMENT, VERIFIERS_SCRIPTS, "reward", (1.0, 0.0)),
        ("verifiers", "environment: guested", STATEFUL_ENVIRONMENT, STATEFUL_SCRIPTS, "reward", (1.0, 0.0)),
        ("tasksets", "taskset: guested, n: 2", TASKSET, TASKSET_SCRIPTS, "reward", (1.0, 0.0)),
        ("tasksets", "taskset: guested", SEATS, SEATS_SCRIPTS, "teller", (0.5, 0.0)),
        ("tasksets", "taskset: guested", SEATS, SEATS_SCRIPTS, "reward", (0.75, 0.0)),
    ],
    ids=["tools", "stateful tools", "taskset", "a role of a taskset", "all roles of a taskset"],
)
def test_an_environment_of_verifiers(
    tmp_path: Path, python: str, spec: str, module: str, scripts: str, key: str, rewards: tuple[float, float]
) -> None:
    (tmp_path / "guested.py").write_text(module)
    (tmp_path / "scripts.py").write_text(scripts)
    (tmp_path / "recipe.yaml").write_text(
        "name: verifiers\n"
        f"tasks: {{source: guest, args: {{kind: verifiers, python: {GUESTS}/{python}/bin/python,\n"
        f"  spec: {{{spec}, path: [./]}}}}}}\n"
        f"agent: {{use: guest, format: hermes}}\nrewards: {{guest: {{key: {key}}}}}\n"
        "scripts: {oracle: ./scripts.py:oracle, guess: ./scripts.py:guess}\n"
    )
    for script, reward in zip(("oracle", "guess"), rewards, strict=True):
        (episode,) = agentrl.rollout(tmp_path, 1, agent=script, out=tmp_path / script, reporters=()).whole_episodes()
        assert (episode.status, episode.reward) == ("done", reward), episode.error


@pytest.mark.skipif(GUESTS is None, reason="needs environments of other frameworks: make test-guests")
@pytest.mark.parametrize(
    ("python", "spec", "expected"),
    [
        ("tasksets", {"taskset": "guested"}, "has no end"),
        ("tasksets", {"taskset": "no_such"}, "no_such"),
        ("tasksets", {"taskset": "guested", "n": 1, "args": {"colour": 1}}, "guested cannot be loaded: .*colour"),
        ("tasksets", {"environment": "guested"}, "has no v0"),
        ("verifiers", {"taskset": "guested"}, "has other tasksets"),
        ("verifiers", {}, "verifiers needs spec"),
    ],
)
def test_a_taskset_that_cannot_be_used(tmp_path: Path, python: str, spec: dict[str, Any], expected: str) -> None:
    (tmp_path / "guested.py").write_text(TASKSET)
    with pytest.raises(TaskError, match=f"(?s){expected}"):
        tasks(tmp_path, kind="verifiers", python=f"{GUESTS}/{python}/bin/python", spec={**spec, "path": ["./"]})
