"""Ends processes with the process that started them: a library, and a program.

    lifeline.py run STARTER FD SECONDS COMMAND ...    runs a command that ends with the process STARTER
    lifeline.py watch SECONDS                         ends process groups: `+ID` and `-ID` on stdin, a line each

`run` exits with the command's exit code. FD is a pipe without writes: it closes when the starter exits, in any way.
Then, on SIGTERM, or when STARTER is no longer its parent, the command ends, with all that it started, in any session:
SIGTERM to its process group, if SECONDS is above 0, and SIGKILL to all of it SECONDS later. What the command leaves
behind when it exits ends at once. `run` itself may be killed: then the kernel kills the command, or, with SECONDS, a
process apart from both ends the command's group.

`watch` ends the groups that are left at the end of its input, in the same way.

Standard library of any Python 3.9+.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

END_S = 5.0
"""Time limit for killing programs that start processes faster than they can be killed."""

LOOK_S = 5.0
"""Seconds between two looks at the parent: another process may hold the starter's end of the pipe open."""


# For programs that start others


def adopt_orphans() -> None:
    """Makes this process a subreaper, see prctl(2): its descendants stay below it when their parents end."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def start(
    argv: list[str],
    log: str,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pass_fds: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program that is killed when this process ends. Its output is appended to a file.

    Raises:
        OSError: the program cannot be started.
    """
    with open(log, "ab") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd, pass_fds=tuple(pass_fds),
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )  # fmt: skip


def end_descendants(kept: Iterable[int] = ()) -> None:
    """Kills all descendants of this process, and reaps those that became its children.

    Args:
        kept: processes that stay, with their descendants.
    """
    until = time.monotonic() + END_S
    while (left := descendants({*kept})) and time.monotonic() < until:
        for pid in left:
            _send(os.kill, pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def descendants(kept: set[int]) -> set[int]:
    """Returns the descendants of this process, without those of `kept`."""
    parents, found, more = _parents(), set[int](), {os.getpid()}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found - kept
        found |= more
    return found


def _parents() -> dict[int, int]:
    """Returns the parent of each process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _send(function: Callable[[int, int], None], to: int, number: int) -> None:
    """Signals a process or a group, if it exists."""
    with suppress(ProcessLookupError, PermissionError):
        function(to, number)


# The program


def run(starter: int, lifeline: int, seconds: float, command: list[str]) -> NoReturn:
    """Runs a command, ends all that is left of it, and exits with its exit code."""
    wake, waker = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(waker, b"\0"))
    signal.signal(signal.SIGINT, lambda *_: None)  # is for the starter
    watcher = _forked_watch(seconds) if seconds else None  # before orphans are adopted: it must not be one of them
    adopt_orphans()

    def before_command() -> None:  # in its process already: this one may be killed between two lines
        if watcher is None:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        else:
            os.write(watcher, b"+%d\n" % os.getpid())

    try:
        child = subprocess.Popen(command, start_new_session=True, preexec_fn=before_command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    _close_streams()  # only the command keeps them open

    def end_with_starter() -> None:
        _wait_for_end(lifeline, wake, starter)
        if seconds:
            _send(os.killpg, child.pid, signal.SIGTERM)
            time.sleep(seconds)  # if the command ends meanwhile, so does this process
        _end(child.pid)
        os._exit(128 + signal.SIGKILL)

    threading.Thread(target=end_with_starter, daemon=True).start()
    with suppress(ChildProcessError):  # the other thread reaped it, and ends this process
        code = _exit_code(child.pid)
        _end(child.pid)
        if watcher is not None:
            os.write(watcher, b"-%d\n" % child.pid)
        os._exit(code if code >= 0 else 128 - code)
    while True:
        signal.pause()


def _wait_for_end(lifeline: int, wake: int, starter: int) -> None:
    """Returns when the pipe closes, on SIGTERM, or when the starter is gone."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while os.getppid() == starter and not poll.poll(LOOK_S * 1000):
        pass


def _exit_code(child: int) -> int:
    """Waits for a child; negative for a signal. Reaps orphans meanwhile."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _end(group: int) -> None:
    """Kills a process group, and descendants that left it."""
    _send(os.killpg, group, signal.SIGKILL)
    end_descendants()


def _close_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _forked_watch(seconds: float) -> int:
    """Starts `watch` in a process of its own session and parent; returns its input."""
    ours, theirs = os.pipe()
    if child := os.fork():
        os.waitpid(child, 0)
        os.close(ours)
        return theirs
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(theirs)
    _close_streams()
    with open(ours, "rb") as lines:
        watch(lines, seconds)
    os._exit(0)


def watch(lines: Iterable[bytes], seconds: float) -> None:
    """Ends the process groups that are left at the end of the input."""
    left = set[int]()
    for line in lines:
        (left.add if line[:1] == b"+" else left.discard)(int(line[1:]))
    if left and seconds:
        for group in left:
            _send(os.killpg, group, signal.SIGTERM)
        time.sleep(seconds)
    for group in left:
        _send(os.killpg, group, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(sys.stdin.buffer, float(sys.argv[2]))
    else:
        run(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
