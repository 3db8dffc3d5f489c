"""verifiers as a guest, of both versions: environments and tasksets, played and scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.types.errors import TaskError
from tests.integrations.guested import GUESTS, needs_guests, tasks

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
TALK_ENVIRONMENT = """\
import os
import verifiers as vf
from datasets import Dataset

class Countdown(vf.MultiTurnEnv):
    @vf.stop
    async def landed(self, state):
        return len(state["trajectory"]) >= state["info"]["turns"]
    async def env_response(self, messages, state, **more):
        return [vf.UserMessage(content=f"and after {messages[-1]['content']}?")]

def right(completion, info):
    said = [message["content"] for message in completion if message["role"] == "assistant"]
    return float(said == [str(n) for n in range(info["turns"], 0, -1)])

def judge_is_not_the_policy():
    return float((os.environ["OPENAI_API_KEY"], os.environ.get("OPENAI_BASE_URL")) == ("of-the-judge", None)) / 2

def load_environment():
    rows = [{"question": f"Count down from {n}.", "info": {"turns": n}} for n in (3, 4)]
    rubric = vf.Rubric(funcs=[right, judge_is_not_the_policy])
    return Countdown(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=9)
"""
TALK_SCRIPTS = """\
from agentrl import Say

def oracle(task, rng):
    heard = None
    for n in range(task.data["info"]["turns"], 0, -1):
        assert heard is None or heard[-1]["content"] == f"and after {n + 1}?"
        heard = yield Say(str(n))

def guess(task, rng):
    while True:
        yield Say("1")
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


@needs_guests
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("python", "spec", "module", "scripts", "key", "rewards"),
    [
        ("verifiers", "environment: guested", VERIFIERS_ENVIRONMENT, VERIFIERS_SCRIPTS, "reward", (1.0, 0.0)),
        ("verifiers", "environment: guested", STATEFUL_ENVIRONMENT, STATEFUL_SCRIPTS, "reward", (1.0, 0.0)),
        ("verifiers", "environment: guested", TALK_ENVIRONMENT, TALK_SCRIPTS, "reward", (1.5, 0.5)),
        ("tasksets", "taskset: guested, n: 2", TASKSET, TASKSET_SCRIPTS, "reward", (1.0, 0.0)),
        ("tasksets", "taskset: guested", SEATS, SEATS_SCRIPTS, "teller", (0.5, 0.0)),
        ("tasksets", "taskset: guested", SEATS, SEATS_SCRIPTS, "reward", (0.75, 0.0)),
    ],
    ids=["tools", "stateful tools", "several turns", "taskset", "a role of a taskset", "all roles of a taskset"],
)
def test_an_environment_of_verifiers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    python: str,
    spec: str,
    module: str,
    scripts: str,
    key: str,
    rewards: tuple[float, float],
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-judge")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
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
        (episode,) = agentrl.rollout(tmp_path, 1, script=script, out=tmp_path / script, reporters=()).whole_episodes()
        assert (episode.status, episode.reward) == ("done", reward), episode.error


@needs_guests
@pytest.mark.timeout(600)
def test_verifiers_is_imported_once_a_worker(tmp_path: Path) -> None:
    """All episodes are forks of one process that has imported it."""
    (tmp_path / "scripts.py").write_text(VERIFIERS_SCRIPTS)
    noted = f"""\
import os, sys
with open({str(tmp_path / "seen")!r}, "a") as file:
    file.write(f"{{'verifiers.envs.tool_env' in sys.modules}} {{os.getppid()}}\\n")
"""
    (tmp_path / "guested.py").write_text(noted + VERIFIERS_ENVIRONMENT.replace("n=3", "n=64"))
    (tmp_path / "recipe.yaml").write_text(
        f"name: verifiers\ntasks: {{source: guest, args: {{kind: verifiers, python: {GUESTS}/verifiers/bin/python,\n"
        "  spec: {environment: guested, path: [./]}}}\nagent: {use: guest, format: hermes}\n"
        "rewards: {guest: {}}\nscripts: {oracle: ./scripts.py:oracle}\n"
    )
    run = agentrl.rollout(tmp_path, 64, script="oracle", out=tmp_path / "run", reporters=())
    assert [episode.reward for episode in run.whole_episodes()] == [1.0] * 64
    _, *seen = (tmp_path / "seen").read_text().splitlines()  # the first: who lists the tasks
    assert len(seen) == 64
    assert len(set(seen)) == 1
    assert seen[0].startswith("True ")


@needs_guests
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
