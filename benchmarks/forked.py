"""Programs in forks of a process that has imported torch: most of a short run would be imports.

`python -m benchmarks --smoke` and the tests (tests/fork_server.py) start commands so.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from typing import NoReturn


def start(arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int, *, leads: bool) -> int:
    """Starts `python ARGUMENTS` in a fork of this process, which has not used torch yet: its threads are not in a fork.

    Args:
        stdout, stderr: descriptors.
        leads: the fork has a process group of its own.

    Returns:
        The number of the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    if leads:
        os.setsid()
    for descriptor, source in enumerate((os.open(os.devnull, os.O_RDONLY), stdout, stderr)):
        os.dup2(source, descriptor)
    run(arguments, environment)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Does in a fork what a fresh `python ARGUMENTS` does, then ends the process."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # temporary folders of the process that forked
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        tempfile.tempdir = None
        status = _exit_code(arguments)
        # As the interpreter ends, but for taking torch's modules apart, which takes longer than most programs.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        _execute(*arguments)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _execute(kind: str, program: str, *arguments: str) -> None:
    """Runs `-m MODULE ARGUMENTS` or `-c CODE ARGUMENTS`."""
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), sys.modules["__main__"].__dict__)
