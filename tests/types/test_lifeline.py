"""A guarded command ends with its starter and its guard, and whatever it started ends with it, in whatever session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.types.lifeline import Lifeline
from tests.waiting import children_of, until

pytestmark = pytest.mark.slow

CHILDREN = {
    "of its group": "spawn()",
    "of a session of its own": "spawn(start_new_session=True)",
    "orphaned in a session of its own": "if not os.fork(): spawn(start_new_session=True); os._exit(0)\nos.wait()",
    "of a session's session": "if not os.fork():\n os.setsid()\n"
    " if not os.fork(): os.setsid(); spawn(); os._exit(0)\n os._exit(0)\nos.wait()",
    "that ignores signals": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nspawn(start_new_session=True)",
    "that is stopped": "os.kill(spawn(start_new_session=True).pid, signal.SIGSTOP)",
}

COMMAND = """
import os, signal, subprocess, sys, time
def spawn(**more):
    return subprocess.Popen(["sleep", "86400"], **more)
{start}
print("ready", flush=True)
sys.stdin.readline()
{then}
"""

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

STARTER = """
import subprocess, sys
from agentrl.types.lifeline import Lifeline
with Lifeline(float(sys.argv[1])) as lifeline:
    guard = subprocess.Popen([*lifeline.guard, *sys.argv[2:]], pass_fds=lifeline.pass_fds, start_new_session=True)
sys.exit(guard.wait())
"""
"""A process that starts a guarded command and waits for it."""

STUBBORN = "trap '' TERM; sleep 300 & echo $! > {pids}; echo $$ >> {pids}; wait"


def marked(mark: str) -> list[int]:
    """The processes that have the mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def alive(pids: Path) -> list[int]:
    numbers = [int(line) for line in pids.read_text().split()] if pids.exists() else []
    return [number for number in numbers if (Path("/proc") / str(number)).exists()]


@contextmanager
def guarded(start: str, then: str, mark: str) -> Iterator[tuple[subprocess.Popen[str], Lifeline]]:
    """The guard of a command that started something."""
    code = COMMAND.format(start=start, then=then)
    env = {**os.environ, "MARK": mark}
    with Lifeline() as lifeline:
        process = subprocess.Popen(
            [*lifeline.guard, sys.executable, "-c", code], pass_fds=lifeline.pass_fds, env=env, **PIPES
        )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise AssertionError("the command did not start")
            until(lambda: len(marked(mark)) >= (3 if start else 2))  # guard, command, what it started
            process.stdin.write("go on\n")
            process.stdin.flush()
            yield process, lifeline
        finally:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
            process.kill()
            lifeline.close()


@pytest.mark.parametrize("how", ["the lifeline closes", "the command ends", "the command is killed"])
@pytest.mark.parametrize("start", CHILDREN.values(), ids=CHILDREN.keys())
def test_all_end(start: str, how: str) -> None:
    mark = f"{os.getpid()}-{abs(hash((start, how)))}"
    then = {"the command ends": "sys.exit(3)", "the command is killed": "os.kill(os.getpid(), 9)"}.get(
        how, "time.sleep(86400)"
    )
    with guarded(start, then, mark) as (process, lifeline):
        if how == "the lifeline closes":
            lifeline.close()
        code = process.wait(60)
        assert not marked(mark)
        assert code == {"the lifeline closes": 137, "the command ends": 3, "the command is killed": 137}[how]


def test_a_command_that_kills_its_guard_ends_with_it() -> None:
    mark = f"{os.getpid()}-guard"
    with guarded("", "os.kill(os.getppid(), 9); time.sleep(86400)", mark) as (process, _):
        process.wait(60)
        until(lambda: not marked(mark))


def test_an_interrupt_is_for_the_starter() -> None:
    """A Ctrl-C goes to the guard, too, when it shares the terminal."""
    with guarded("", "time.sleep(0); sys.exit(5)", f"{os.getpid()}-interrupt") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 5


def test_a_command_ends_although_another_process_holds_the_lifeline() -> None:
    """A fork of the starter keeps its end of the pipe open; the guard looks at its parent as well."""
    mark = f"{os.getpid()}-held"
    fork = "import os, time; guard.poll(); os.fork() or (os.setsid(), time.sleep(86400)); os._exit(0)"
    starter = STARTER.replace("sys.exit(guard.wait())", fork)
    command = [sys.executable, "-c", starter, "0", "sleep", "86400"]
    process = subprocess.Popen(command, env={**os.environ, "MARK": mark})
    try:
        assert process.wait(60) == 0
        until(lambda: len(marked(mark)) == 1)  # the fork
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("who", ["starter", "guard"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("seconds", ["0", "1"])
def test_a_stubborn_command_ends_with_its_starter_and_guard(tmp_path: Path, who: str, how: int, seconds: str) -> None:
    pids = tmp_path / "pids"
    command = ["sh", "-c", STUBBORN.format(pids=pids)]
    starter = subprocess.Popen([sys.executable, "-c", STARTER, seconds, *command])
    until(lambda: len(alive(pids)) == 2)
    (guard,) = children_of(starter.pid)
    os.kill(starter.pid if who == "starter" else guard, how)
    starter.wait()
    if (who, how, seconds) == ("guard", signal.SIGKILL, "0"):  # the kernel kills the command alone
        until(lambda: len(alive(pids)) <= 1)
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pids))


def test_seconds_are_for_a_command_that_ends_by_itself(tmp_path: Path) -> None:
    pids, ended = tmp_path / "pids", tmp_path / "ended"
    polite = f"trap 'echo > {ended}; exit 4' TERM; echo $$ > {pids}; while :; do sleep 0.05; done"
    starter = subprocess.Popen([sys.executable, "-c", STARTER, "600", "sh", "-c", polite])
    until(lambda: len(alive(pids)) == 1)
    (guard,) = children_of(starter.pid)
    os.kill(guard, signal.SIGTERM)
    assert starter.wait() == 4
    assert ended.exists()


def test_what_a_command_leaves_behind_is_ended_and_its_status_told(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ["sh", "-c", f"sleep 300 & echo $! > {pids}; exit 7"]
    assert subprocess.run([sys.executable, "-c", STARTER, "1", *command], check=False).returncode == 7
    until(lambda: not alive(pids))


def test_a_command_that_is_missing_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTER, "0", "/no/such/program"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "/no/such/program: No such file or directory\n"
