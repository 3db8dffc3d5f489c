"""Programs in forks of this process, which have its modules already: most of a smoke run would be imports of torch."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn


def start(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int, *, leads: bool
) -> int:
    """Starts `python -m module` in a fork.

    Only for a process that has not used torch yet: torch's threads do not survive in a fork.

    Args:
        stdout, stderr: descriptors.
        leads: it has a process group of its own.

    Returns:
        The number of the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    if leads:
        os.setsid()
    _play(module, arguments, environment, stdout, stderr)


def _play(module: str, arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int) -> NoReturn:
    code = 1
    atexit._clear()  # of this process: folders that it removes at its end
    try:
        for descriptor, source in enumerate((os.open(os.devnull, os.O_RDONLY), stdout, stderr)):
            os.dup2(source, descriptor)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [module, *arguments]
        code = _exit_code(module)
        threading._shutdown()  # type: ignore[attr-defined]  # what ends an interpreter, in its order
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
