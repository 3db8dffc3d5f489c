"""Helper processes for work on untrusted input: queries, web pages, formulas, patches.

In the driver this work would block all episodes, a timeout could not interrupt it, and a crash of the library would
break the run. A helper is started on first use, answers one request at a time, and is replaced if it exceeds its
limit of CPU time or memory. CPU time, unlike wall time, does not depend on the load of the machine. A helper with
little memory left after a request ends behind its answer.

`python -m agentrl.sandbox.helper MODULE MEMORY_MB` runs a helper: one request per line, one reply per line.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.types.errors import AgentRLError, InfraError
from agentrl.types.modules import load_file
from agentrl.types.stdlib import piped

_START_S = 120.0  # an import of an algebra system on a busy machine
_PATIENCE = 20.0  # wall time allowed, as a multiple of the CPU time, plus
_GRACE_S = 10.0  # these seconds
_LARGEST = 64 << 20  # bytes of a reply
_ENV = {"MALLOC_ARENA_MAX": "1"}
"""Each thread of a library (DuckDB starts eight for each database) would otherwise take 64 MiB of the memory."""
_FILE = 512 << 20  # maximum of bytes of a file that a helper writes


class TooMuch(Exception):
    """The work exceeded its limit of time or memory, or ended its process; the message names the cause."""


class Starved(InfraError):
    """The process did not get its processor time: the machine is too busy, or the process was stopped."""


class HelperRaised(AgentRLError):
    """The function raised in its process."""


class Helper:
    """Processes that call functions of one module. Arguments and results are JSON.

    Args:
        module: name of the module, or path of its file (`.py`). Each process imports it once, and calls its function
            `prepare`, if it has one: its time does not count for the first request.
        memory_mb: limit of the address space of a process.
        size: maximum number of processes; further requests wait.
        kept: maximum number of idle processes; others end.
    """

    def __init__(self, module: str, memory_mb: int = 2048, size: int = 2, kept: int = 2) -> None:
        self._command = [sys.executable, "-m", "agentrl.sandbox.helper", module, str(memory_mb)]
        self._size, self._kept = size, kept
        self._idle: queue.LifoQueue[subprocess.Popen[bytes]] = queue.LifoQueue()
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    async def ask(self, function: Callable[..., Any], *arguments: Any, cpu_s: float, tries: int = 2) -> Any:
        """Calls a function of the module. Returns its result.

        Args:
            cpu_s: limit of CPU time.
            tries: maximum number of attempts of a call that does not get its processor time.

        Raises:
            TooMuch: the call exceeded the limit of time or memory.
            Starved: it did not get its processor time.
            HelperRaised: the function raised.
            AgentRLError: the process cannot be started.
        """
        for left in reversed(range(tries)):
            try:
                return await self._once(function, arguments, cpu_s)
            except Starved:
                if not left:
                    raise

    async def _once(self, function: Callable[..., Any], arguments: tuple[Any, ...], cpu_s: float) -> Any:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="helper")
                atexit.register(self.stop)
        question = (function.__name__, arguments, cpu_s)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, *question)

    def _ask(self, name: str, arguments: tuple[Any, ...], cpu_s: float) -> Any:
        process = self._take()
        line = json.dumps([name, arguments, cpu_s]).encode() + b"\n"
        answer, tired, states = None, False, set[str]()
        try:
            entry = piped(process.stdin)
            entry.write(line)
            entry.flush()
            answer = _line(process, _PATIENCE * cpu_s + _GRACE_S)
            if answer is None and not _said(process, 0):
                states = _states(process.pid)
            kind, value, tired = json.loads(answer or b'["", "", true]')
        except BrokenPipeError:
            pass  # the kernel has just killed it for memory
        finally:
            if answer is None or tired or self._idle.qsize() >= self._kept:
                self._end(process)
            else:
                self._idle.put(process)
        if states == _WAITS:
            raise TooMuch("it waits for something that does not come")
        if states:
            raise Starved(
                f"a helper process did not get {cpu_s:g} s of processor time",
                remedy=_FEWER,
            )
        if answer is None:
            crash = _CRASHES.get(-process.returncode)
            raise TooMuch(f"it ended its process ({crash})" if crash else f"no result within {cpu_s:g} s")
        if kind == "memory":
            raise TooMuch("no result within the memory that it may take")
        if kind == "raised":
            raise HelperRaised(f"{name} raised {value} in a helper process")
        return value

    def _take(self) -> subprocess.Popen[bytes]:
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return self._start()
            if process.poll() is None:
                return process
            self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(self._command, env={**os.environ, **_ENV}, **streams)
        self._alive.add(process)
        if _line(process, _START_S) != b"ready":
            busy = process.poll() is None and not _said(process, 0)
            self._end(process)
            if busy:
                raise Starved(f"a helper process did not start within {_START_S:g} s", remedy=_FEWER)
            raise AgentRLError("a helper process did not start", remedy=f"try {' '.join(self._command)}")
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._alive.discard(process)
        process.kill()
        process.communicate()

    def stop(self) -> None:
        """Ends the processes. Waiting requests raise TooMuch."""
        for process in list(self._alive):
            process.kill()


def _line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """Returns the next line of its output; None on timeout, or if the process died."""
    line = piped(process.stdout).readline(_LARGEST) if _said(process, timeout_s) else b""
    return line.strip() if line.endswith(b"\n") else None


def _said(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Returns True if output or its end arrives within a time."""
    assert process.stdout is not None
    poll = select.poll()  # not `select`, which fails for descriptors above 1023
    poll.register(process.stdout, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


_FEWER = "lower concurrency, or run fewer other programs on this machine"
_WAITS = {"S"}
"""States of an idle process. Others: R, it waits for a processor; D, for a disk; T, stopped."""


def _states(pid: int) -> set[str]:
    """Returns the states of the threads of a process, see proc(5)."""
    with suppress(OSError):
        return {each.read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").glob("*/stat")}
    return {"X"}


_CRASHES = {int(number): number.name for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)}


def _imported(module: str) -> ModuleType:
    if not module.endswith(".py"):
        return importlib.import_module(module)
    return load_file(Path(module).stem, module)


def _serve(module: str, memory_mb: int) -> None:
    functions = _imported(module)
    getattr(functions, "prepare", lambda: None)()
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    answers = sys.stdout
    sys.stdout = sys.stderr  # output of libraries must not mix with replies
    print("ready", file=answers, flush=True)
    for question in sys.stdin:
        name, arguments, cpu_s = json.loads(question)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF has no handler and ends the process
        try:
            answer: list[Any] = ["ok", getattr(functions, name)(*arguments)]
        except MemoryError:
            answer = ["memory", ""]
        except Exception as error:
            answer = ["raised", f"{type(error).__name__}: {error}"]
        signal.setitimer(signal.ITIMER_PROF, 0)
        tired = 2 * _address_space() > memory_mb << 20
        print(json.dumps([*answer, tired]), file=answers, flush=True)


def _address_space() -> int:
    """Bytes that this process has taken of what RLIMIT_AS bounds."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
