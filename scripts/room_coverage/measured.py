"""Coverage of a process and of those that it forks or starts, each with the context of a test.

`__main__.py` links this file into an environment, where `measured.pth` imports it in every process. coverage.py's
own patches are not used: they label no test in a child, and a child that ends by `os._exit` would save the lines of its
parent again.

A process that runs no tests has the context that stands in its environment when it ends (`VARIABLE`): a fork server
gives each fork an environment of its own.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "AGENTRL_TEST_CONTEXT"
SETTINGS = Path(__file__).with_name("measured.ini")
"""Beside the link, not beside the file that it points to."""


class _Process:
    """The measurement of this process."""

    coverage: Any = None
    data: Any = None
    tests = False
    """True where tests run: each line has the context of its test already."""


def start() -> None:
    """Starts to measure this process. A fork starts again, without the lines of its parent."""
    from coverage import Coverage

    if _Process.coverage is not None:
        _Process.coverage.stop()
    _Process.tests = False
    _Process.coverage = Coverage(config_file=str(SETTINGS), data_suffix=True)
    _Process.coverage.start()
    _Process.data = _Process.coverage.get_data()
    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def save() -> None:
    """Writes what was measured; never an error, since the program under test comes first."""
    with suppress(Exception):
        if not _Process.tests:
            _Process.data.set_context(os.environ.get(VARIABLE, ""))
        _Process.coverage.save()


def switch(context: str) -> None:
    """Labels what runs from here on, in this process and in those that it starts."""
    _Process.tests = True
    os.environ[VARIABLE] = context
    _Process.coverage.switch_context(context)


def _terminated(number: int, _: object) -> None:
    save()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _saved_before(call: Callable[..., Any]) -> Callable[..., Any]:
    def saves_first(*arguments: Any) -> Any:
        save()
        return call(*arguments)

    return saves_first


def measure_this_process() -> None:
    """Starts, and saves at each end that Python sees."""
    if not os.access(SETTINGS.parent, os.W_OK):
        return  # in a sandbox: nothing of agentrl runs there, and nothing could be written
    start()
    atexit.register(save)
    os.register_at_fork(after_in_child=start)
    for name in ("_exit", "execv", "execve"):
        setattr(os, name, _saved_before(getattr(os, name)))


if __name__ != "__main__" and SETTINGS.exists():
    measure_this_process()
