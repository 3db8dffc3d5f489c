"""Warm starts: a program is a fork of a process that has imported its modules, and like a fresh one in all else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.api.recipe_check import check as check_recipe
from agentrl.rollouts.programs.warm import Warm, check_modules
from agentrl.store.check import check
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError

pytestmark = pytest.mark.slow

FRAMEWORK = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
USES = []
"""

AGENT = """
import atexit, json, os, random, sys, urllib.request
import framework

def ask(text):
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]
"""

RECIPE = """\
name: warm
tasks: {{jsonl: tasks.jsonl, prompt: "{{n}}?"}}
agent:
  program: {program}
  warm: {warm}
  format: tags
  env: {{IMPORTS: {folder}/imports, N: "{{data.n}}"{env}}}
rewards: {{right: {{use: exact_match, key: n}}}}
scripts: {{say: ./task.py:say}}
model: {{scratch: {{vocab_size: 300, max_context: 512}}}}
limits: {{backoff_s: 0.01}}
"""

SAYS = """
from agentrl import Say

def say(task, rng):
    while True:
        yield Say(task.data["n"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"n": "{n}"}}\n' for n in range(6)))
    (tmp_path / "task.py").write_text(SAYS)
    (tmp_path / "framework.py").write_text(FRAMEWORK)
    return tmp_path


def played(
    folder: Path, program: str, *, n: int = 6, command: str = "./agent.py", warm: str = "[framework]", env: str = ""
) -> list[Episode]:
    (folder / "agent.py").write_text(AGENT + program)
    text = RECIPE.format(program=f"[{sys.executable}, {command}]", warm=warm, folder=folder, env=env)
    (folder / "recipe.yaml").write_text(text)
    run = agentrl.rollout("recipe.yaml", n, script="say", out="run", reporters=())
    assert check(run.path).ok
    return sorted(run.whole_episodes(), key=lambda episode: episode.id)


def imports(folder: Path) -> int:
    return len((folder / "imports").read_text().splitlines())


def test_modules_are_imported_once_and_nothing_else_is_shared(folder: Path) -> None:
    """Each episode has globals, an environment, a folder, open files, arguments and random numbers of its own."""
    program = f"""
assert __name__ == "__main__" and sys.modules["__main__"].ask is ask and sys.argv[1:] == ["x", os.environ["N"]]
assert framework.USES == [] and "MINE" not in os.environ and os.listdir() == [], "left by another episode"
assert os.getpgid(0) == os.getsid(0) == os.getpid()
assert sorted(os.listdir("/proc/self/fd"))[:3] == ["0", "1", "2"] and len(os.listdir("/proc/self/fd")) == 4
framework.USES.append(1)
os.environ["MINE"] = open("mine", "w").name
atexit.register(open({str(folder)!r} + "/ended", "a").write, "x")
with open({str(folder)!r} + "/drawn", "a") as file:
    file.write(f"{{random.random()}} {{sys.modules['numpy'].random.random()}}\\n")
print("thinking")
assert sys.stdin.read() == os.environ["N"] + "?"
print(ask("?"))
"""
    found = played(folder, program, command='./agent.py, x, "{data.n}"', warm="[framework, numpy.random]")
    assert [(e.status, e.answer, e.reward) for e in found] == [("done", str(n), 1.0) for n in range(6)], found[0].error
    assert imports(folder) == 1
    assert len(set((folder / "drawn").read_text().split())) == 12
    assert (folder / "ended").read_text() == "x" * 6


def test_a_module_is_a_program_too(folder: Path) -> None:
    (folder / "packages").mkdir()
    (folder / "packages/played.py").write_text(AGENT + "assert sys.argv[0].endswith('played.py'); print(ask('?'))")
    (folder / "framework.py").rename(folder / "packages/framework.py")
    found = played(folder, "", command="-m, played", env=f", PYTHONPATH: {folder}/packages")
    assert [e.status for e in found] == ["done"] * 6, found[0].error
    assert imports(folder) == 1


def test_a_program_that_dies_takes_no_other_along(folder: Path) -> None:
    """It is tried again, as a program that starts cold."""
    program = """
said = ask("?")
if os.environ["N"] in "024":
    os.kill(os.getpid(), 9)
print(said)
"""
    found = played(folder, program)
    assert [(e.status, e.stop, e.attempt) for e in found] == [
        ("truncated", "tool_broken", 1), ("done", "answer", 0),
    ] * 3  # fmt: skip
    assert imports(folder) == 1


def test_programs_get_a_fresh_server_if_theirs_ended(folder: Path) -> None:
    program = f"""
said = ask("?")
try:
    open({str(folder)!r} + "/killed", "x")
except FileExistsError:
    print(said)
else:
    os.kill(os.getppid(), 9)
    while True:
        pass
"""
    found = played(folder, program)
    assert [(e.status, e.reward) for e in found] == [("done", 1.0)] * 6, [e.error for e in found]
    assert imports(folder) == 2


def test_errors_of_a_program_are_those_of_a_cold_start(folder: Path) -> None:
    (episode,) = played(folder, "ask('?'); raise ValueError('of the agent')", n=1)
    assert episode.status == "user_error"
    assert episode.error is not None
    assert "exit code 1" in episode.error.message
    assert "of the agent" in episode.error.message


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()", "a thread"),
        ("file = open('/etc/passwd')", "framework opens .*/etc/passwd when it is imported: all forks would share it"),
        ("import asyncio; loop = asyncio.new_event_loop()", "framework opens .*eventpoll"),
        ("1 / 0", "framework cannot be imported: ZeroDivisionError"),
        ("import os; os._exit(3)", "has ended while it imported framework"),
    ],
)
def test_what_forks_cannot_share_is_refused(folder: Path, framework: str, said: str) -> None:
    (folder / "framework.py").write_text(framework)
    for episode in played(folder, "print(ask('?'))", n=2):
        assert episode.status == ("infra_error" if "_exit" in framework else "user_error")
        assert episode.error is not None
        assert re.search(said, episode.error.message), episode.error.message


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"program": ["cat", "./agent.py"]}, "agent.warm: only a Python program starts warm, .* 'cat .*agent.py'"),
        ({"program": [sys.executable, "-c", "pass"]}, "only a Python program starts warm"),
        ({"program": [sys.executable]}, "only a Python program starts warm"),
        ({"program": [sys.executable, "./agent.py"], "where": "sandbox"}, "a program in the sandbox cannot start warm"),
        ({"program": [sys.executable, "./agent.py"], "warm": ["frmwork.x"]}, "has no module 'frmwork.x'\n.* pip inst"),
    ],
)
def test_what_cannot_start_warm_is_refused_before_the_first_episode(
    folder: Path, agent: dict[str, Any], said: str
) -> None:
    text = RECIPE.format(program="[cat]", warm="[framework]", folder=folder, env="")
    (folder / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        check_recipe("recipe.yaml", [f"agent={json.dumps({'warm': ['framework'], **agent})}"])


def test_options_of_the_interpreter_are_the_servers(tmp_path: Path) -> None:
    command = ["python3.11", "-X", "dev", "-u", f"{tmp_path}/agent.py", "-x"]
    warm = Warm.of(command, ["json"], {"A": "1", "B": "{data.b}"})
    assert warm == Warm(("python3.11", "-X", "dev", "-u"), f"{tmp_path}/agent.py", ("json",), (("A", "1"),))
    assert warm.arguments(command) == [f"{tmp_path}/agent.py", "-x"]
    assert Warm.of(["python", "{data.script}"], ["json"], {}).script == ""


def test_modules_beside_the_program_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside.py").touch()
    check_modules(Warm.of([sys.executable, f"{tmp_path}/agent.py"], ["beside", "json.decoder"], {}))
