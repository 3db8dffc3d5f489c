"""inspect_ai as a guest: its list of tasks, what it cannot load, and its tasks played to their ends."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.integrations import guests
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.integrations.guested import GUESTS, needs_guests, packages, tasks
from tests.waiting import limits

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
import sys
import time
from types import SimpleNamespace
from inspect_ai._util.error import PrerequisiteError

def load_tasks(names, args):
    if names[0] == "unknown.py@one":
        raise PrerequisiteError("Task named 'one' not found.")
    if names[0] == "away.py@one":
        open("away.py")
    if names[0] == "mail.py@one":
        print("a warning " * 900, file=sys.stderr)
        raise ImportError("email-validator is not installed, run pip")
    print("downloading " * 20_000)
    time.sleep(args.get("sleep_s", 0))
    sample = SimpleNamespace(input="1+1?", target="2", id=1)
    return [SimpleNamespace(dataset=[sample])]
""",
}
INSPECT["inspect_ai/dataset.py"] = "class MemoryDataset:\n    shuffle_choices = None\n"
OPENAI = {"openai.py": "", "numpy/__init__.py": "", "numpy/random.py": "def seed(number): pass\n"}


def of_inspect(folder: Path, files: dict[str, str], **spec: Any) -> list[Task]:
    """The tasks, listed by a Python that has no package but these."""
    packages(folder, files | {"python": f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n'})
    (folder / "python").chmod(0o755)
    return tasks(folder, kind="inspect", python="./python", spec={"path": ["./"], **spec})


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_framework_may_print_more_than_a_pipe_holds(tmp_path: Path) -> None:
    listed = of_inspect(tmp_path, INSPECT | OPENAI, task="sums.py@add")
    assert [task.id for task in listed] == ["add-1"]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_list_of_tasks_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in limits(1.0):
        monkeypatch.setattr(guests, "LIST_S", limit)
        with pytest.raises(TaskError, match=f"took more than {limit:g} s") as told:
            of_inspect(tmp_path, INSPECT | OPENAI, task="sums.py@add", args={"sleep_s": 1000})
        if re.search("Its last lines: .*downloading", str(told.value)):
            break


@pytest.mark.slow
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
        (
            INSPECT | OPENAI,
            "mail.py@one",
            r"^tasks.args \(kind: inspect\): ImportError: email-validator is not installed",
        ),
    ],
    ids=["without inspect_ai", "without openai", "without inspect-evals", "unknown task", "unknown file", "broken"],
)
def test_what_inspect_cannot_load(tmp_path: Path, files: dict[str, str], task: str, expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        of_inspect(tmp_path, files, task=task)


REAL = """\
from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import Score, accuracy, choice, includes, match, mean, model_graded_fact, scorer
from inspect_ai.solver import basic_agent, generate, multiple_choice, system_message, use_tools
from inspect_ai.tool import ToolError, bash, python, tool
from inspect_ai.util import sandbox

FILES = {"secret.txt": "the word is amber\\n"}

@task
def shell():
    sample = Sample(input="Which word is in secret.txt?", target="amber", files=FILES)
    return Task(dataset=[sample], solver=react(tools=[bash(), python()]), scorer=includes(), sandbox="local")

@task
def basic():
    sample = Sample(input="Which word is in secret.txt?", target="amber", files=FILES)
    solver = basic_agent(tools=[bash(timeout=30)], max_attempts=2)
    return Task(dataset=[sample], solver=solver, scorer=includes(), sandbox="local")

@tool
def weigh():
    async def execute(thing: str):
        \"\"\"Weighs a thing.

        Args:
            thing: What to weigh.
        \"\"\"
        if thing != "stone":
            raise ToolError(f"there is no {thing}")
        return 7

    return execute

@task
def weights():
    samples = [Sample(input="How heavy is the stone?", target="7", id="a [stone]: heavy? *")]
    return Task(dataset=samples, solver=[use_tools(weigh()), generate()], scorer=match(numeric=True))

@task
def graded(own=False):
    sample = Sample(input="Name a colour.", target="red")
    roles = {"grader": "mockllm/model"} if own else None
    return Task(dataset=[sample], solver=generate(), scorer=model_graded_fact(), model_roles=roles)

@task
def shuffled():
    samples = [Sample(input=f"{n}?", target="A", choices=[f"it is {n}", "no", "none"]) for n in range(50)]
    dataset = MemoryDataset(samples)
    dataset.shuffle()
    dataset.shuffle_choices()
    return Task(dataset=dataset, solver=multiple_choice(), scorer=choice())

@scorer(metrics=[mean()])
def odd(value):
    async def score(state, target):
        return Score(value=float("nan") if value == "nan" else value, explanation="the scale is broken")

    return score

@task
def odds(value="nan"):
    return Task(dataset=[Sample(input="Say it.", target="it")], solver=generate(), scorer=odd(value))
"""
REAL_SCRIPTS = """\
from agentrl import Say

def shell(task, rng):
    heard = yield Say(calls=[("bash", {"command": "cat secret.txt"})])
    heard = yield Say(calls=[("python", {"code": f"print({heard[-1]['content']!r}.split()[-1])"})])
    yield Say(calls=[("submit", {"answer": heard[-1]["content"].strip()})])

def shell_wrong(task, rng):
    heard = yield Say(calls=[("bash", {"command": "cat no-such-file"})])
    assert "No such file" in heard[-1]["content"], heard
    yield Say(calls=[("submit", {"answer": "green"})])

def basic(task, rng):
    yield Say(calls=[("submit", {"answer": "green"})])
    heard = yield Say(calls=[("bash", {"command": "cat secret.txt"})])
    yield Say(calls=[("submit", {"answer": heard[-1]["content"]})])

def basic_wrong(task, rng):
    yield Say(calls=[("submit", {"answer": "green"})])
    yield Say(calls=[("submit", {"answer": "blue"})])

def weights(task, rng):
    heard = yield Say(calls=[("weigh", {"thing": "stone"})])
    yield Say(heard[-1]["content"])

def weights_wrong(task, rng):
    heard = yield Say(calls=[("weigh", {"thing": "feather"})])
    assert "there is no feather" in heard[-1]["content"], heard
    heard = yield Say(calls=[("weigh", {"nothing": 1})])
    yield Say("It has no weight.")

def graded(task, rng):
    yield Say("red")
    yield Say("GRADE: C")

def graded_wrong(task, rng):
    yield Say("red")
    yield Say("GRADE: I")

def shuffled(task, rng, messages):
    number = task.instruction[-1]["content"].removesuffix("?")
    (letter,) = [line[0] for line in messages[-1]["content"].splitlines() if line.endswith(f"it is {number}")]
    assert letter == task.data["answer"][0], (letter, task.data)
    yield Say(f"ANSWER: {letter}")

def shuffled_wrong(task, rng):
    yield Say("ANSWER: " + {"A": "B", "B": "C", "C": "A"}[task.data["answer"][0]])

def odds(task, rng):
    yield Say("it")
"""


def played(folder: Path, task: str, script: str, n: int = 1, **spec: Any) -> Any:
    """Episodes of a task of the real inspect_ai."""
    packages(folder, {"real.py": REAL, "scripts.py": REAL_SCRIPTS})
    recipe = {
        "name": "real",
        "tasks": {
            "source": "guest",
            "args": {
                "kind": "inspect",
                "python": f"{GUESTS}/inspect/bin/python",
                "spec": {"task": f"./real.py@{task}", **spec},
            },
        },
        "agent": {"use": "guest", "format": "hermes"},
        "rewards": {"guest": {}},
        "scripts": {script: f"./scripts.py:{script}"},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    overrides = {"limits.user_errors": 9, "limits.retries": 0}
    return agentrl.rollout(folder, n, script=script, out=folder / script, overrides=overrides, reporters=())


@needs_guests
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("task", "n", "spec"),
    [
        ("shell", 1, {}),
        ("basic", 1, {}),
        ("weights", 1, {}),
        ("shuffled", 2, {}),
        ("graded", 1, {"roles": {"grader": "policy"}}),
    ],
    ids=["react with a shell", "basic_agent", "an id that looks like a pattern", "unseeded shuffles", "its own grader"],
)
def test_a_task_of_inspect_is_played_to_its_end(tmp_path: Path, task: str, n: int, spec: dict[str, Any]) -> None:
    for script, reward in ((task, 1.0), (f"{task}_wrong", 0.0)):
        run = played(tmp_path, task, script, n, **spec)
        ended = [(episode.status, episode.reward) for episode in run.whole_episodes()]
        assert ended == [("done", reward)] * n, (run.dir.path / "failures.jsonl").read_text()


@needs_guests
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("task", "spec", "said"),
    [
        ("graded", {}, "@graded asks a grader: name one, spec: {roles: {grader: openai/gpt-4o-mini}}"),
        ("odds", {}, "the score odd is nan, which is no reward: the scale is broken"),
        ("odds", {"args": {"value": [1, 0]}}, "the score odd is [1, 0], which is no reward: the scale is broken"),
        ("odds", {"args": {"value": {"a": 1, "b": 0}}}, "the score odd holds a, b: give spec.metric"),
    ],
    ids=["nobody grades", "no value", "a list", "two values"],
)
def test_a_score_that_is_no_reward(tmp_path: Path, task: str, spec: dict[str, Any], said: str) -> None:
    run = played(tmp_path, task, task, **spec)
    (failure,) = map(json.loads, (run.dir.path / "failures.jsonl").read_text().splitlines())
    assert failure["status"] == "user_error"
    assert said in failure["message"].splitlines()[0]


@needs_guests
@pytest.mark.timeout(600)
def test_a_task_may_bring_its_grader(tmp_path: Path) -> None:
    run = played(tmp_path, "graded", "graded", args={"own": True})
    failure = (run.dir.path / "failures.jsonl").read_text()
    assert "asks a grader" not in failure
