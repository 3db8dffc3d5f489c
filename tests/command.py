"""Runs the command line as a user does, and other programs: each in a process of its own.

Each is a fork of a process that has imported torch (fork_server.py), which saves it five seconds. What a command
imports, and that `agentrl` starts at all, are matters of tests/install.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def agentrl(
    *arguments: str, cwd: Path, ok: bool = True, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `agentrl ARGUMENTS` in `cwd`, and returns its output as text.

    Args:
        ok: fail the test, with the output, if the exit code is not 0.
        environment: variables that are added.
    """
    return python("-m", "agentrl.cli", *arguments, cwd=cwd, ok=ok, timeout=timeout, **environment)


def python(
    *arguments: str, cwd: Path | None = None, ok: bool = True, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m MODULE ...` or `python -c CODE ...` as `agentrl` runs a command, with `environment` added."""
    started = Started(*arguments, cwd=cwd, **environment)
    try:
        code = started.wait(timeout)
    finally:
        started.kill()
    done = subprocess.CompletedProcess(arguments, code, *started.said())
    if ok:
        assert code == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done


def commands() -> dict[str, Any]:
    """Every command of `agentrl`, by the words that call it."""
    from typer.core import TyperGroup
    from typer.main import get_command

    from agentrl.cli import app

    def below(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
        for word, command in group.commands.items():
            if isinstance(command, TyperGroup):
                yield from below(command, *words, word)
            else:
                yield " ".join([*words, word]), command

    return dict(below(get_command(app)))


def sets(*overrides: str) -> list[str]:
    """Overrides of a recipe, as arguments."""
    return [part for override in overrides for part in ("--set", override)]


class Started:
    """`python ARGUMENTS`, started in `cwd`. Has the methods of `subprocess.Popen` that tests need."""

    def __init__(self, *arguments: str, cwd: Path | None = None, **environment: str) -> None:
        self.args = arguments
        self._output = [os.memfd_create(name) for name in ("stdout", "stderr")]
        read, write = os.pipe()
        request = {
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "environment": {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **environment},
        }
        socket.send_fds(_server(), [json.dumps(request).encode()], [*self._output, write])
        os.close(write)
        self._told = open(read, "rb", buffering=0)  # noqa: SIM115
        self.pid = int(self._told.readline())
        self.returncode = None

    returncode: int | None
    """The exit code, the signal's number below 0, or None while it is not known to have ended."""

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired([*self.args], timeout or 0.0, *(text.encode() for text in self.said()))
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def said(self) -> tuple[str, str]:
        """What it has written so far: standard output, standard error."""
        stdout, stderr = (os.pread(file, os.fstat(file).st_size, 0).decode() for file in self._output)
        return stdout, stderr

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(self._told.readline()))
        return self.returncode

    def __del__(self) -> None:
        for file in self._output:
            os.close(file)


@functools.cache
def _server() -> socket.socket:
    """The connection to the process that forks. It ends with this process, which closes the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
        subprocess.Popen(command, cwd=Path(__file__).parents[1], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return ours
