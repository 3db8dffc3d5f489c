"""Programs on this machine that end when this process does, however it ends (`tools/shared/lifeline.py`)."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import Self

from agentrl.types.paths import data_path


class Lifeline:
    """Pipe to a guard, which runs one command. Its close, in any way, ends the command and all that it started.

    Use it as a context manager around the start: it closes the guard's end here, and everything if the start fails.

    Args:
        seconds: between SIGTERM and SIGKILL; 0: SIGKILL only.

    Attributes:
        guard: arguments before those of the command.
        pass_fds: as `subprocess` takes them.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._inside, ours = os.pipe()
        self._ours = [ours]  # empty once it is closed
        self.guard = [*_program(), "run", str(os.getpid()), str(self._inside), f"{seconds:g}"]
        self.pass_fds = (self._inside,)

    def close(self) -> None:
        """Ends the command, unless it has ended. May be called twice, and in several threads at once."""
        with suppress(IndexError):
            os.close(self._ours.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._inside)
        if kind is not None:
            self.close()


@contextmanager
def announced() -> Iterator[Callable[[], None]]:
    """Yields the `preexec_fn` of a program that starts within the block with a session of its own.

    The program itself then tells its group to the process that watches over all groups, before it begins: this process
    may be killed between the start and its next line. `not_orphaned` takes over.
    """
    watcher = _watcher()
    told, tell = os.pipe()

    def announce() -> None:
        line = b"+%d\n" % os.getpid()
        with suppress(OSError):
            os.write(tell, line)
            os.write(watcher, line)

    try:
        yield announce
    except OSError:  # it could not be started: its number may soon be another's
        os.set_blocking(told, False)
        with suppress(BlockingIOError):
            _tell(b"-" + os.read(told, 32)[1:])
        raise
    finally:
        os.close(told)
        os.close(tell)


def watching() -> int:
    """Returns a new descriptor of the input of the process that watches over all groups.

    A program that gets it may write `+ID` and a line break: its group is then killed if this process ends.
    """
    return os.dup(_watcher())


@contextmanager
def not_orphaned(group: int) -> Iterator[None]:
    """Ensures that a process group is killed if this process ends within the block."""
    _tell(b"+%d\n" % group)
    try:
        yield
    finally:
        _tell(b"-%d\n" % group)


def kill_group(group: int) -> None:
    """Kills a process group, if it exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _tell(line: bytes) -> None:
    with suppress(OSError):  # it was killed: programs continue without it
        os.write(_watcher(), line)


@cache
def _watcher() -> int:
    """Returns the input of the process that watches over all groups. It starts with the first one."""
    # A separate session: a Ctrl-C is for the programs' owner only.
    process = subprocess.Popen(
        [*_program(), "watch", "0"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
    )
    atexit.register(process.communicate)
    assert process.stdin is not None
    return process.stdin.fileno()


def _program() -> list[str]:
    return [sys.executable, "-I", "-S", str(data_path("tools", "shared", "lifeline.py"))]
