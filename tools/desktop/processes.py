"""The processes of a desktop: they end with this one, and none of their children is left behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def adopt_orphans():
    """Processes whose parents end become children of this one, so that they can be found."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(argv, log, env=None, cwd=None, pass_fds=()):
    """Starts a program that is killed when this one ends.

    Raises:
        OSError: it cannot be started.
    """
    with open(log, "ab") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd, pass_fds=pass_fds,
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )  # fmt: skip


def end_all(kept=()):
    """Kills every descendant but those with the ids in `kept`, and waits until they are gone."""
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
    """The ids of the processes whose parent this one is. Killed parents leave theirs to us, for the next round."""
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
