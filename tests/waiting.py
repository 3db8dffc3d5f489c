"""Waits for what no event tells: another process has ended, a file is there, a line was logged.

Neither wait has a deadline of its own. A condition that never comes true hangs until pytest-timeout ends the test and
shows where it hung, so a busy machine makes a test slower and never red.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

POLL_S = 0.01

MARKS = """new Promise(found => {
  const look = () => {
    const shots = [...document.querySelectorAll('.shot')];
    if (shots.length) found(shots.map(each => each.querySelectorAll('.mark').length)); else setTimeout(look, 10);
  };
  look();
})"""
"""Script of a page of the viewer: the number of marks on each screenshot, once they are drawn."""


def until(condition: Callable[[], object]) -> None:
    """Returns when the condition is true. Asks less and less often: a long wait costs no processor time."""
    pause_s = POLL_S
    while not condition():
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.1, 10 * POLL_S)


async def until_async(condition: Callable[[], object]) -> None:
    """Returns when the condition is true. The event loop runs meanwhile."""
    while not condition():
        await asyncio.sleep(POLL_S)


def limits(first_s: float) -> Iterator[float]:
    """Yields limits of time, each twice the one before.

    For a program that must get somewhere before its limit ends it, however slow the machine: it runs with one limit
    after the other, until it did.
    """
    while True:
        yield first_s
        first_s *= 2


async def turns(count: int = 50) -> None:
    """Lets the event loop turn so often: tasks that wait for nobody get as far as they can."""
    for _ in range(count):
        await asyncio.sleep(0)


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process started, or that were left to it."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for each in threads for child in each.read_text().split())


def descendants_of(pid: int) -> list[int]:
    """Returns all processes below one."""
    children = children_of(pid)
    return [*children, *(each for child in children for each in descendants_of(child))]


def wait_for_end(pid: int) -> None:
    """Returns when a process has ended, whosever child it is."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [])
        finally:
            os.close(descriptor)


def stop(pid: int) -> None:
    """Stops a process, and returns when each of its threads has stopped: some run on for a while after the signal."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(_state(task) in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir()))


def _state(task: Path) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def until_listening(port: int, server: subprocess.Popen[Any]) -> None:
    """Returns when a process that was started takes connections. Fails if it ends before."""

    def there() -> bool:
        assert server.poll() is None, f"the server ended with {server.returncode}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(there)


@contextmanager
def running_program(argv: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A program with its standard output as text. It is killed at the end, so that a test that failed ends as well."""
    with subprocess.Popen(argv, **{"stdout": subprocess.PIPE, "text": True, **settings}) as program:
        try:
            yield program
        finally:
            program.kill()
