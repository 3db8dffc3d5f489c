"""Kills orphaned programs: a second process kills those that remain when this one is killed.

The second process runs this file as a script. It reads the process groups of programs, `+123` when one starts and
`-123` when it is over. At the end of its input, which comes however this process ends, it kills the remaining ones.
"""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache


@contextmanager
def not_orphaned(group: int) -> Iterator[None]:
    """Ensures that a process group is killed if this process ends within the block."""
    _tell(f"+{group}\n")
    try:
        yield
    finally:
        _tell(f"-{group}\n")


def _tell(line: str) -> None:
    with suppress(OSError):  # it was killed: programs continue without it
        os.write(_guard(), line.encode())


@cache
def _guard() -> int:
    """Returns the input of the second process, which starts with the first program."""
    # A separate session: a Ctrl-C is for the programs' owner only.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )
    atexit.register(process.communicate)
    assert process.stdin is not None
    return process.stdin.fileno()


def _kill_what_is_left() -> None:
    left = set[int]()
    for line in sys.stdin:
        (left.add if line[0] == "+" else left.discard)(int(line[1:]))
    for group in left:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _kill_what_is_left()
