"""The guard of MCP servers: whatever a server started ends with it, in whatever session it is."""

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

from agentrl.types.paths import data_path
from tests.waiting import until

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

SERVER = """
import os, signal, subprocess, sys, time
def spawn(**more):
    return subprocess.Popen(["sleep", "86400"], **more)
{start}
print("ready", flush=True)
sys.stdin.readline()
{then}
"""


PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


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


@contextmanager
def guarded(start: str, then: str, mark: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The guard with a server that started something, and the end of its lifeline that this process holds."""
    inside, lifeline = os.pipe()
    guard = [sys.executable, "-I", "-S", str(data_path("tools", "mcp", "guard.py")), str(inside)]
    command = [sys.executable, "-c", SERVER.format(start=start, then=then)]
    with subprocess.Popen([*guard, *command], pass_fds=[inside], env={**os.environ, "MARK": mark}, **PIPES) as process:
        os.close(inside)
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise AssertionError("the server did not start")
            until(lambda: len(marked(mark)) >= (3 if start else 2))  # guard, server, what it started
            process.stdin.write("go on\n")
            process.stdin.flush()
            yield process, lifeline
        finally:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
            process.kill()


@pytest.mark.parametrize("how", ["the host ends", "the server ends", "the server is killed"])
@pytest.mark.parametrize("start", CHILDREN.values(), ids=CHILDREN.keys())
def test_all_end(start: str, how: str) -> None:
    mark = f"{os.getpid()}-{abs(hash((start, how)))}"
    then = {"the server ends": "sys.exit(3)", "the server is killed": "os.kill(os.getpid(), 9)"}.get(
        how, "time.sleep(86400)"
    )
    with guarded(start, then, mark) as (process, lifeline):
        if how == "the host ends":
            os.close(lifeline)
        code = process.wait(60)
        assert not marked(mark)
        assert code == {"the host ends": 137, "the server ends": 3, "the server is killed": 137}[how]
    if how != "the host ends":
        os.close(lifeline)


def test_a_server_that_kills_its_guard_ends_with_it() -> None:
    mark = f"{os.getpid()}-guard"
    with guarded("", "os.kill(os.getppid(), 9); time.sleep(86400)", mark) as (process, lifeline):
        process.wait(60)
        until(lambda: not marked(mark))
    os.close(lifeline)
