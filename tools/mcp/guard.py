"""Runs a command in a session of its own, and kills all of it when whoever started this is gone.

    guard.py FD COMMAND ...

FD is a pipe that nobody writes to: it ends with its other end, however that ends. Standard library only.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def kill(group):
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def watch(lifeline, group):
    os.read(lifeline, 1)
    kill(group)
    os._exit(137)


def main():
    lifeline = int(sys.argv[1])
    try:
        child = subprocess.Popen(sys.argv[2:], start_new_session=True)
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
    nothing = os.open(os.devnull, os.O_RDWR)  # the pipes are the child's alone
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    threading.Thread(target=watch, args=(lifeline, child.pid), daemon=True).start()
    code = child.wait()
    kill(child.pid)  # what it left behind
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
