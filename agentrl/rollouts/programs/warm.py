"""Warm starts: a Python program begins as a fork of a process that has imported its modules (`tools/shared`)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO, Self
from weakref import WeakKeyDictionary

from agentrl.rollouts.programs.ended import ProgramFailed, ProgramKilled
from agentrl.types.errors import InfraError, RecipeError
from agentrl.types.lifeline import announced, kill_group, not_orphaned, watching
from agentrl.types.paths import data_path

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_WITH_VALUE = ("-W", "-X")
_SHOWN = 1000  # characters of what a server printed, in errors

_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Variables of a server: numpy and pyarrow start threads when they are imported, which a fork would lack."""


class CannotFork(ProgramFailed):
    """A module cannot be imported, or it starts or opens what forks cannot share."""


class NoForkServer(InfraError):
    """A fork server ended before it had imported its modules."""


@dataclass(frozen=True)
class Warm:
    """Settings of a fork server. Programs with equal settings share one.

    Attributes:
        python: interpreter, and its options.
        script: absolute path; its folder begins the import path. "": none.
        modules: to import, in this order.
        env: variables besides those of this process.
    """

    python: tuple[str, ...]
    script: str
    modules: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, command: Sequence[str], modules: Sequence[str], env: Mapping[str, str]) -> Self:
        """Returns what a command needs: `python [OPTIONS] SCRIPT ...` or `python [OPTIONS] -m MODULE ...`.

        Args:
            env: variables of the program; only those without placeholders are known to a server.

        Raises:
            RecipeError: the command does not start a file or module with Python.
        """
        at = 1
        while at < len(command) and command[at].startswith("-") and command[at] not in ("-", "-c", "-m"):
            at += 2 if command[at] in _WITH_VALUE else 1
        rest = command[at:]
        is_module = len(rest) > 1 and rest[0] == "-m"
        if not _PYTHON.fullmatch(command[0]) or not rest or (rest[0].startswith("-") and not is_module):
            raise RecipeError(
                f"only a Python program starts warm, and the command is {' '.join(command[: at + 1])!r}",
                place="agent.warm",
                remedy="remove agent.warm; or agent.program: [python, ./FILE.py, ...] or [python, -m, MODULE, ...]",
            )
        script = rest[0] if os.path.isabs(rest[0]) and "{" not in rest[0] else ""
        return cls((*command[:at],), script, (*modules,), without_places(env))

    def arguments(self, command: Sequence[str]) -> list[str]:
        """Returns what follows the interpreter and its options."""
        return list(command[len(self.python) :])

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the server."""
        return {**os.environ, **dict(self.env), **_ONE_THREAD}


def without_places(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns the variables that are the same in every episode."""
    return tuple((name, value) for name, value in sorted(env.items()) if "{" not in value)


@cache
def check_modules(warm: Warm) -> None:
    """Checks that the interpreter finds the modules. Imports none: of `a.b` only `a` is looked for.

    Raises:
        RecipeError: a module is missing there.
    """
    code = (
        "import importlib.util, json, sys; sys.path[:1] = sys.argv[1:2];"
        "print(json.dumps([name for name in sys.argv[2:] if importlib.util.find_spec(name.partition('.')[0]) is None]))"
    )
    folder = os.path.dirname(os.path.realpath(warm.script)) if warm.script else ""
    found = subprocess.run(
        [*warm.python, "-c", code, folder, *warm.modules],
        stdin=subprocess.DEVNULL, capture_output=True, env=warm.environment, cwd="/", check=False,
    )  # fmt: skip
    if found.returncode:
        said = found.stderr.decode("utf-8", "replace").strip()[-_SHOWN:]
        raise RecipeError(f"{' '.join(warm.python)} does not start: {said}", place="agent.program")
    if missing := json.loads(found.stdout):
        package = missing[0].partition(".")[0]
        raise RecipeError(
            f"{warm.python[0]} has no module {missing[0]!r}",
            place="agent.warm",
            remedy=f"{warm.python[0]} -m pip install {package}, or take it off the list",
        )


class Forked:
    """Program that a server has forked, with pipes to its streams.

    Args:
        status: gets its exit code in a line.
        transports: of the pipes.
    """

    def __init__(
        self,
        pid: int,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
        status: asyncio.StreamReader,
        transports: Sequence[asyncio.BaseTransport],
    ) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self._code, self._transports = asyncio.create_task(status.readline()), transports

    async def exit_code(self) -> int:
        """Waits for its exit code; negative for a signal.

        Raises:
            ProgramKilled: the server has ended, and the code is unknown.
        """
        line = await asyncio.shield(self._code)
        if not line:
            raise ProgramKilled(_GONE)
        return int(line)

    def close(self) -> None:
        """Closes the pipes, also those that an escaped child keeps open."""
        self._code.cancel()
        for each in self._transports:
            each.close()


class ForkServer:
    """Process that imports modules and forks for each program. It ends with its event loop, and with this process."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm
        self._channel, self._theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._turn = asyncio.Lock()  # the socket holds few requests that wait
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep())

    @property
    def lost(self) -> bool:
        """True if it has ended, and another one may do better."""
        ready = self._ready
        faulty = ready.done() and not ready.cancelled() and isinstance(ready.exception(), CannotFork)
        return self._keeper.done() and not faulty

    async def run(self, argv: Sequence[str], env: Mapping[str, str], folder: str) -> Forked:
        """Starts a program: a script or `-m MODULE`, and arguments.

        Raises:
            CannotFork: a module cannot be imported, or forks cannot share what it starts or opens.
            NoForkServer: the server has ended during the imports.
            ProgramFailed: the interpreter cannot be started.
            ProgramKilled: the server has ended since.
        """
        await asyncio.shield(self._ready)
        starting = asyncio.create_task(self._run(argv, env, folder))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_drop)
            raise

    async def _run(self, argv: Sequence[str], env: Mapping[str, str], folder: str) -> Forked:
        pipes = [os.pipe() for _ in range(4)]
        body = _file({"argv": list(argv), "env": dict(env), "cwd": folder})
        (theirs, into), *outputs = pipes
        *streams, told = [theirs, *(theirs for _, theirs in outputs)]
        given = [body, *streams, watching(), told]
        stdin, feeding = await _writing(into)
        (stdout, _), (stderr, _), (status, _) = reading = [await _reading(out) for out, _ in outputs]
        transports = [feeding, *(transport for _, transport in reading)]
        try:
            async with self._turn:
                try:
                    socket.send_fds(self._channel, [b"\0"], given)
                except OSError:
                    raise ProgramKilled(_GONE) from None
                finally:
                    for number in given:
                        os.close(number)
                pid = await status.readline()
            if not pid:
                raise ProgramKilled(_GONE)
        except BaseException:
            for each in transports:
                each.close()
            raise
        return Forked(int(pid), stdin, stdout, stderr, status, transports)

    async def _keep(self) -> None:
        """Starts the process, and ends it with this task."""
        program = str(data_path("tools", "shared", "fork_server.py"))
        try:
            with self._channel, tempfile.TemporaryFile() as log:
                with self._theirs, announced() as announce:
                    process = await asyncio.create_subprocess_exec(
                        *self._warm.python, program, self._warm.script, *self._warm.modules,
                        stdin=self._theirs.fileno(), stdout=log, stderr=log, env=self._warm.environment, cwd="/",
                        start_new_session=True, preexec_fn=announce,
                    )  # fmt: skip
                with not_orphaned(process.pid):
                    try:
                        self._answer(await _first_line(self._channel), log)
                        await process.wait()
                    finally:
                        kill_group(process.pid)
                        await process.wait()
        except OSError as error:
            self._settle(ProgramFailed(f"the program cannot be started: {error}", place="agent.program"))
        finally:
            self._ready.cancel()

    def _answer(self, line: bytes, log: IO[bytes]) -> None:
        if not line:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()[-_SHOWN:]
            names = ", ".join(self._warm.modules)
            self._settle(NoForkServer(f"the fork server has ended while it imported {names}: {said}"))
        elif fault := json.loads(line).get("fault"):
            self._settle(CannotFork(fault, place="agent.warm", remedy="take it off the list"))
        elif not self._ready.done():
            self._ready.set_result(None)

    def _settle(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)


_GONE = "the fork server of the program has ended"


def _drop(starting: asyncio.Task[Forked]) -> None:
    """Ends a program for which nobody waits."""
    if not starting.cancelled() and starting.exception() is None:
        kill_group(starting.result().pid)
        starting.result().close()


def _file(content: object) -> int:
    """Returns a descriptor of a file in memory: arguments may be too long for a message."""
    number = os.memfd_create("request")
    with open(number, "wb", closefd=False) as file:
        file.write(json.dumps(content).encode())
    return number


async def _first_line(channel: socket.socket) -> bytes:
    """Returns the first line; b"" if the server ends before."""
    loop, line = asyncio.get_running_loop(), b""
    while not line.endswith(b"\n"):
        part = await loop.sock_recv(channel, 1 << 16)
        if not part:
            return b""
        line += part
    return line


async def _reading(pipe: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    return reader, transport


async def _writing(pipe: int) -> tuple[asyncio.StreamWriter, asyncio.WriteTransport]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(pipe, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop), transport


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Warm, ForkServer]] = WeakKeyDictionary()


def fork_server(warm: Warm) -> ForkServer:
    """Returns the server of the running event loop, a new one if it has ended."""
    known = _servers.setdefault(asyncio.get_running_loop(), {})
    if (found := known.get(warm)) is None or found.lost:
        found = known[warm] = ForkServer(warm)
    return found
