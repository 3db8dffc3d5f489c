"""Runs a command in a new session, and kills it and all its descendants when the caller exits.

    guard.py FD COMMAND ...

FD is a pipe without writes: it closes when the caller exits, in any way. Standard library only.

Orphans of the command, also in other sessions and groups, become children of this process (a child subreaper, see
prctl(2)) and end with it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

END_S = 5.0
"""Time limit for killing programs that start processes faster than they can be killed."""


def set_process(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def kill(send, to):
    with suppress(ProcessLookupError, PermissionError):
        send(to, signal.SIGKILL)


def parents():
    """Returns the parent of each process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def descendants():
    """Returns all descendants of this process."""
    parent, found, more = parents(), set(), {os.getpid()}
    while more:
        more = {pid for pid, above in parent.items() if above in more} - found
        found |= more
    return found


def end(group):
    """Kills the command's process group and descendants that left it."""
    kill(os.killpg, group)
    until = time.monotonic() + END_S
    while (left := descendants()) and time.monotonic() < until:
        for pid in left:
            kill(os.kill, pid)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def watch(lifeline, group):
    os.read(lifeline, 1)
    end(group)
    os._exit(137)


def status_of(child):
    """Waits for the command and returns its exit code. Reaps its orphans meanwhile."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main():
    lifeline = int(sys.argv[1])
    set_process(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            sys.argv[2:],
            start_new_session=True,
            preexec_fn=lambda: set_process(PR_SET_PDEATHSIG, signal.SIGKILL),  # in case it kills this process
        )
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
    nothing = os.open(os.devnull, os.O_RDWR)  # only the child keeps the pipes open
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    threading.Thread(target=watch, args=(lifeline, child.pid), daemon=True).start()
    with suppress(ChildProcessError):  # the other thread reaped it and ends this process
        code = status_of(child.pid)
        end(child.pid)  # its remaining descendants
        os._exit(code if code >= 0 else 128 - code)
    threading.Event().wait()


if __name__ == "__main__":
    main()
