"""Sandbox whose init is the toolbox: the whole contract except creation and destruction."""

from __future__ import annotations

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.sandbox.toolbox import carry
from agentrl.sandbox.toolbox.endpoint import Endpoint
from agentrl.sandbox.toolbox.process import ToolboxProcess
from agentrl.sandbox.toolbox.session import ToolboxKernel, ToolboxShell
from agentrl.sandbox.toolbox.wire import Field, Response, Wire, finite
from agentrl.types.clocks.deadline import Timer
from agentrl.types.sandbox import (
    OUTPUT_LIMIT,
    CapabilityMissing,
    ExecOutcome,
    ExecResult,
    FileInfo,
    Health,
    Sandbox,
    SandboxLost,
    SandboxSpec,
    SandboxStartFailed,
)

OWN_USER = ("agent", "1000")
"""Name and number of the user of all programs."""

TOOLS = "/run/agentrl/tools"
"""Folder of our programs inside."""

WIRE = "/run/agentrl/wire"
"""Folder inside that holds sockets of the host, if any."""

_HEALTH_S = 1.0
_ENDED: dict[str, ExecOutcome] = {"timeout": "timeout", "output_limit": "output_limit"}


class WithoutSnapshots:
    """Snapshots of a sandbox, which backends that support them override."""

    async def snapshot(self) -> str:
        """Saves the files, see `Sandbox.snapshot`."""
        raise no_snapshots()

    async def restore(self, ref: str) -> None:
        """Restores the files, see `Sandbox.restore`."""
        raise no_snapshots()

    async def fork(self, number: int) -> Sequence[Sandbox]:
        """Creates sandboxes with the files of this one, see `Sandbox.fork`."""
        raise no_snapshots()


def no_snapshots() -> CapabilityMissing:
    """Returns the error for a sandbox without snapshots."""
    remedy = "set sandbox.spec.snapshots: true, on a backend that can"
    return CapabilityMissing("this sandbox cannot be snapshot", place="sandbox.spec.snapshots", remedy=remedy)


class ToolboxSandbox(WithoutSnapshots, ABC):
    """Sandbox that is controlled over a `Wire`."""

    def __init__(self, spec: SandboxSpec, label: str, wire: Wire) -> None:
        self.spec = spec
        self.wire = wire
        self.label = label
        self._sessions: dict[tuple[str, str], ToolboxShell | ToolboxKernel] = {}
        self._endpoints: dict[int, tuple[Endpoint, str]] = {}
        self._oom_seen = 0
        self._ttl: Timer | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def label(self) -> str:
        """Label of the owning episode, for error messages. A pooled sandbox gets it on checkout."""
        return self.wire.label

    @label.setter
    def label(self, label: str) -> None:
        self.wire.label = label

    # To be implemented by a backend

    @abstractmethod
    async def destroy(self) -> None:
        """Kills all processes and frees all resources."""

    @abstractmethod
    def oom_kills(self) -> int | None:
        """Returns the number of processes killed for memory so far; None if unknown."""

    @abstractmethod
    def memory_mb(self) -> float | None:
        """Returns the memory in use, MiB; None if unknown."""

    @abstractmethod
    def cpu_s(self) -> float | None:
        """Returns the processor time of all its processes so far; None if unknown."""

    # Programs

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float = 60.0,
        output_limit: int = OUTPUT_LIMIT,
    ) -> ExecResult:
        """Runs a program to its end, see `Sandbox.exec`."""
        if user is not None and user not in OWN_USER:
            problem = f"exec cannot run as {user!r}: all programs of this sandbox run as {OWN_USER[0]!r}"
            raise CapabilityMissing(problem, place="exec(user=...)", remedy="leave user out")
        id = self.wire.fresh_id()
        fields = {**_program(command, self._path(cwd or "."), env), "limit": output_limit, "timeout": finite(timeout_s)}
        try:
            reply = await self.wire.request("exec", fields, stdin, timeout_s, id)
        except asyncio.CancelledError:
            self.wire.send({"op": "stop", "id": "", "job": id, "reason": "cancel"})
            raise
        out = int(reply.fields["out"])
        return self.result(reply, reply.body[:out], reply.body[out:])

    async def spawn(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> ToolboxProcess:
        """Starts a program and returns its process. Raises OSError if it cannot be started."""
        return await self._start("spawn", _program(command, self._path(cwd or "."), env))

    async def carry(self, words: Sequence[str]) -> ToolboxProcess:
        """Starts the toolbox's program that packs and unpacks files. Raises OSError if it cannot be started."""
        return await self._start("carry", {"arg": words, "cwd": "/"})

    async def _start(self, op: str, fields: Mapping[str, Field]) -> ToolboxProcess:
        wire = self.wire
        id = wire.fresh_id()
        end = wire.expect(f"{id}.end")
        try:
            reply = await wire.request(op, fields, id=id)
        except asyncio.CancelledError:
            wire.send({"op": "stop", "id": "", "job": id, "reason": "cancel"})
            wire.send({"op": "process_drop", "id": "", "job": id})
            raise
        return ToolboxProcess(self, id, int(reply.fields["pid"]), end)

    def result(self, reply: Response, stdout: bytes, stderr: bytes = b"", code: int | None = None) -> ExecResult:
        """Converts a reply to a result; `code` if the reply has none."""
        fields = reply.fields
        if fields["code"]:
            code = int(fields["code"])
        return ExecResult(
            code=code,
            outcome=self.outcome(fields, code),
            stdout=stdout,
            stderr=stderr,
            stdout_dropped=int(fields.get("out_dropped", 0)),
            stderr_dropped=int(fields.get("err_dropped", 0)),
            duration_s=float(fields["took"]),
            peak_mem_mb=int(fields["peak"]) / 1024 if fields.get("peak") else None,
        )

    def outcome(self, fields: Mapping[str, str], code: int | None) -> ExecOutcome:
        """Returns the outcome of a program."""
        if code == 137 and (kills := self.oom_kills() or 0) > self._oom_seen:
            self._oom_seen = kills
            return "oom"
        if reason := fields.get("reason"):
            return _ENDED.get(reason, "signal")
        if fields.get("signalled") == "1":
            return "signal"
        return "ok" if code == 0 else "nonzero"

    # Sessions

    async def session(self, name: str = "main") -> ToolboxShell:
        """Returns the shell of that name."""
        shell = self._sessions.setdefault(("shell", name), ToolboxShell(self, name))
        assert isinstance(shell, ToolboxShell)
        return shell

    async def python(self, name: str = "main") -> ToolboxKernel:
        """Returns the Python kernel of that name."""
        kernel = self._sessions.setdefault(("python", name), ToolboxKernel(self, name))
        assert isinstance(kernel, ToolboxKernel)
        return kernel

    # Files

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """Returns a file's content. It comes in chunks, so that a large one takes no memory of the sandbox."""
        wire = self.wire
        id, more = wire.fresh_id(), True
        rest: dict[str, Field] = {"job": id, "stream": "stdout", "size": 1 << 20}
        try:
            reply = await self._file("read", path, {"limit": limit}, id=id)
            pieces, size, more = [reply.body], len(reply.body), "more" in reply.fields
            while more and (piece := (await wire.request("process_read", rest)).body):
                pieces.append(piece)
                size += len(piece)
                if size > limit:  # it grew
                    raise OSError(errno.EFBIG, f"File is larger than the limit of {limit} bytes", path)
        finally:
            if more:
                wire.send({"op": "process_drop", "id": "", "job": id})
        return b"".join(pieces)

    async def write(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        """Writes a file; missing parent folders are created."""
        await self._file(
            "write", path, {"mode": f"{mode:o}"}, content.encode() if isinstance(content, str) else content
        )

    async def list(self, path: str = ".", *, limit: int = 1 << 16) -> list[FileInfo]:
        """Returns the entries of a folder, sorted by name."""
        body = (await self._file("list", path, {"limit": limit})).body.decode("utf-8", "surrogateescape")
        entries = []
        for row in body.split("\0") if body else []:
            kind, size, name = row.split(" ", 2)
            entries.append(FileInfo(name, kind, int(size)))  # type: ignore[arg-type]
        return entries

    async def put(self, source: Path, path: str) -> None:
        """Copies a host file, or the content of a host folder, into the folder `path`."""
        await carry.send(self, source, self._path(path))

    async def get(self, path: str, target: Path) -> None:
        """Copies a file or the content of a folder into the host folder `target`."""
        await carry.fetch(self, self._path(path), target)

    async def _file(
        self, op: str, path: str, fields: Mapping[str, str | int], body: bytes = b"", id: str | None = None
    ) -> Response:
        try:
            return await self.wire.request(op, {"path": self._path(path), **fields}, body, id=id)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.spec.workdir}/{path}"

    # Network

    async def endpoint(self, port: int) -> str:
        """Returns the address of that port inside, see `Sandbox.endpoint`."""
        if port not in self._endpoints:
            endpoint = Endpoint(self, port)
            self._endpoints[port] = endpoint, await endpoint.open()
        return self._endpoints[port][1]

    # Life

    def limit_life(self) -> None:
        """Starts the clock of `ttl_s`. Further calls have no effect."""
        if self._ttl is None:
            self._ttl = Timer(self.spec.ttl_s, self._expire)
            self._ttl.go()

    def _expire(self) -> None:
        self.wire.expire(f"its ttl_s of {self.spec.ttl_s:g} s is over")

    async def prepare(self) -> None:
        """Writes the spec's files and runs its setup commands.

        Raises:
            SandboxStartFailed: one of them failed.
        """
        for path, content in self.spec.files.items():
            try:
                await self.write(path, content)
            except OSError as error:
                raise SandboxStartFailed(f"files: cannot write {path}: {error.strerror}") from None
        for command in self.spec.setup:
            result = await self.exec(command, timeout_s=self.spec.setup_timeout_s)
            if not result.ok:
                raise SandboxStartFailed(
                    f"setup: {command!r} ended with {result.outcome} (code {result.code}): {result.text[-500:].strip()}"
                )

    async def health(self) -> Health:
        """Returns its state; never raises."""
        try:
            reply = await self.wire.request("health", {}, timeout_s=_HEALTH_S)
        except SandboxLost as loss:
            return Health(alive=False, loss=loss)
        except OSError:  # it is out of memory or of descriptors
            return Health(True, None, self.memory_mb(), self.oom_kills())
        processes = int(reply.fields["processes"])
        return Health(True, processes, self.memory_mb(), self.oom_kills())

    async def close(self) -> None:
        """Kills all processes and frees all resources, even if the caller is cancelled."""
        if self._closing is None:
            self.wire.end("it was closed")
            if self._ttl is not None:
                self._ttl.stop()
            for endpoint, _ in self._endpoints.values():
                endpoint.close()
            self._closing = asyncio.create_task(self.destroy())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _program(command: str | Sequence[str], folder: str, env: Mapping[str, str] | None) -> dict[str, Field]:
    argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
    if not argv:
        raise ValueError("an empty command")
    return {"arg": argv, "cwd": folder, "env": env or {}}
