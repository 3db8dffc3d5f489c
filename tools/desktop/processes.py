"""Processes of a desktop: they and all their descendants end with this process."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def adopt_orphans():
    """Makes this process a subreaper: orphans become its children and can be found."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(argv, log, env=None, cwd=None, pass_fds=()):
    """Starts a program that is killed when this process ends.

    Raises:
        OSError: the program cannot be started.
    """
    with open(log, "ab") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd, pass_fds=pass_fds,
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )  # fmt: skip


def end_all(kept=()):
    """Kills all descendants except the pids in `kept`, and waits for their exit."""
    for _ in range(200):
        found = [pid for pid in _children() if pid not in kept]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def _children():
    """Returns the pids of our children. Children of killed processes become ours for the next round."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == own:
                found.append(int(name))
    return found
