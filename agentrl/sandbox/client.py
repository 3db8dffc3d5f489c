"""A sandbox whose init is the toolbox: everything of the contract but how it is made and destroyed."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import stat
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from agentrl.sandbox.contract import (
    OUTPUT_LIMIT,
    CapabilityMissing,
    ExecResult,
    FileInfo,
    Health,
    Outcome,
    Sandbox,
    SandboxLost,
    SandboxSpec,
    SandboxStartFailed,
)
from agentrl.sandbox.endpoint import Endpoint
from agentrl.sandbox.process import ToolboxProcess
from agentrl.sandbox.session import ToolboxKernel, ToolboxShell
from agentrl.sandbox.wire import Reply, Wire, finite

OWN_USER = ("agent", "1000")
"""Name and number of the user that programs run as."""

TOOLS = "/run/agentrl/tools"
"""Where our programs lie inside."""

WIRE = "/run/agentrl/wire"
"""The folder inside that holds sockets of the host's, where a sandbox has such."""

_TAR_LIMIT = 256 << 20
_TAR = 'if [ -d "$1" ]; then tar -C "$1" -cf - .; else tar -C "$(dirname "$1")" -cf - "$(basename "$1")"; fi'
_ENDED: dict[str, Outcome] = {"timeout": "timeout", "output_limit": "output_limit"}


class ToolboxSandbox(ABC):
    """A sandbox that is spoken to over a `Wire`."""

    def __init__(self, spec: SandboxSpec, label: str, wire: Wire) -> None:
        self.spec = spec
        self.wire = wire
        self.label = label
        self._sessions: dict[tuple[str, str], ToolboxShell | ToolboxKernel] = {}
        self._endpoints: dict[int, tuple[Endpoint, str]] = {}
        self._oom_seen = 0
        self._ttl: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def label(self) -> str:
        """Whose it is, for messages; a pool learns that late."""
        return self.wire.label

    @label.setter
    def label(self, label: str) -> None:
        self.wire.label = label

    # What a backend adds

    @abstractmethod
    async def destroy(self) -> None:
        """Kills and frees everything."""

    @abstractmethod
    def oom_kills(self) -> int | None:
        """Processes killed for memory so far; None if that cannot be known."""

    @abstractmethod
    def memory_mb(self) -> float | None:
        """Memory in use, MiB; None if that cannot be known."""

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
        fields = {**self._program(command, cwd, env), "limit": output_limit, "timeout": finite(timeout_s)}
        try:
            reply = await self.wire.ask("exec", fields, stdin, timeout_s, id)
        except asyncio.CancelledError:
            self.wire.tell({"op": "stop", "id": "", "job": id, "reason": "cancel"})
            raise
        out = int(reply.fields["out"])
        return self.result(reply, reply.body[:out], reply.body[out:])

    async def spawn(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> ToolboxProcess:
        """Starts a program to talk to. Raises OSError if it cannot be started."""
        wire = self.wire
        id = wire.fresh_id()
        end = wire.expect(f"{id}.end")
        try:
            reply = await wire.ask("spawn", self._program(command, cwd, env), id=id)
        except asyncio.CancelledError:
            wire.tell({"op": "stop", "id": "", "job": id, "reason": "cancel"})
            wire.tell({"op": "process_drop", "id": "", "job": id})
            raise
        return ToolboxProcess(self, id, int(reply.fields["pid"]), end)

    def _program(
        self, command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None
    ) -> dict[str, str | Sequence[str] | Mapping[str, str]]:
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command")
        return {"arg": argv, "cwd": self._path(cwd or "."), "env": env or {}}

    def result(self, reply: Reply, stdout: bytes, stderr: bytes = b"", code: int | None = None) -> ExecResult:
        """The result that a reply tells; `code` if the reply itself carries none."""
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

    def outcome(self, fields: Mapping[str, str], code: int | None) -> Outcome:
        """How a program ended."""
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
        """The shell of that name."""
        shell = self._sessions.setdefault(("shell", name), ToolboxShell(self, name))
        assert isinstance(shell, ToolboxShell)
        return shell

    async def python(self, name: str = "main") -> ToolboxKernel:
        """The Python kernel of that name."""
        kernel = self._sessions.setdefault(("python", name), ToolboxKernel(self, name))
        assert isinstance(kernel, ToolboxKernel)
        return kernel

    # Files

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """A file's content."""
        return (await self._file("read", path, {"limit": limit})).body

    async def write(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        """Writes a file; missing parent folders are made."""
        await self._file(
            "write", path, {"mode": f"{mode:o}"}, content.encode() if isinstance(content, str) else content
        )

    async def list(self, path: str = ".") -> list[FileInfo]:
        """Entries of a folder, sorted by name."""
        body = (await self._file("list", path, {})).body.decode("utf-8", "surrogateescape")
        entries = []
        for row in body.split("\0") if body else []:
            kind, size, name = row.split(" ", 2)
            entries.append(FileInfo(name, kind, int(size)))  # type: ignore[arg-type]
        return entries

    async def put(self, source: Path, path: str) -> None:
        """Copies a host file, or the content of a host folder, into the folder `path`."""
        packed = await asyncio.to_thread(_pack, source)
        command = 'mkdir -p "$1" && tar --no-same-owner -C "$1" -xf -'
        result = await self.exec(["sh", "-c", command, "sh", self._path(path)], stdin=packed, timeout_s=300)
        if not result.ok:
            raise OSError(f"cannot put {source} into {path}: {result.text.strip()}")

    async def get(self, path: str, target: Path) -> None:
        """Copies a file or the content of a folder into the host folder `target`."""
        argv = ["sh", "-c", _TAR, "sh", self._path(path)]
        result = await self.exec(argv, timeout_s=300, output_limit=2 * _TAR_LIMIT)
        if not result.ok or len(result.stdout) > _TAR_LIMIT:
            why = result.stderr.decode("utf-8", "replace").strip() or f"more than {_TAR_LIMIT >> 20} MiB"
            raise OSError(f"cannot get {path}: {why}")
        await asyncio.to_thread(_unpack, result.stdout, target)

    async def _file(self, op: str, path: str, fields: Mapping[str, str | int], body: bytes = b"") -> Reply:
        try:
            return await self.wire.ask(op, {"path": self._path(path), **fields}, body)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.spec.workdir}/{path}"

    # Network

    async def endpoint(self, port: int) -> str:
        """Where that port inside is reached, see `Sandbox.endpoint`."""
        if port not in self._endpoints:
            endpoint = Endpoint(self, port)
            self._endpoints[port] = endpoint, await endpoint.open()
        return self._endpoints[port][1]

    # Snapshots, where a backend can

    async def snapshot(self) -> str:
        """Keeps the files, see `Sandbox.snapshot`."""
        raise self._no_snapshots()

    async def restore(self, ref: str) -> None:
        """Puts the files back, see `Sandbox.restore`."""
        raise self._no_snapshots()

    async def fork(self, number: int) -> Sequence[Sandbox]:
        """New sandboxes with the files of this one, see `Sandbox.fork`."""
        raise self._no_snapshots()

    def _no_snapshots(self) -> CapabilityMissing:
        remedy = "set sandbox.spec.snapshots: true, on a backend that can"
        return CapabilityMissing("this sandbox cannot be snapshot", place="sandbox.spec.snapshots", remedy=remedy)

    # Life

    def limit_life(self) -> None:
        """From now on it has `ttl_s` to live. Asked for again, it changes nothing."""
        if self._ttl is None:
            self._ttl = asyncio.get_running_loop().call_later(self.spec.ttl_s, self._expire)

    def _expire(self) -> None:
        self.wire.end(f"its ttl_s of {self.spec.ttl_s:g} s is over")

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
        """How it is; never raises."""
        try:
            reply = await self.wire.ask("health", {})
        except SandboxLost:
            return Health(alive=False)
        return Health(True, int(reply.fields["processes"]), self.memory_mb(), self.oom_kills())

    async def close(self) -> None:
        """Kills and frees everything, also when the caller is cancelled meanwhile."""
        if self._closing is None:
            self.wire.end("it was closed")
            if self._ttl is not None:
                self._ttl.cancel()
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


def _pack(source: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(source, arcname="." if source.is_dir() else source.name)
    return packed.getvalue()


def _unpack(packed: bytes, target: Path) -> None:
    """Unpacks what a sandbox packed. Its programs may have forged every byte of it.

    Nothing is resolved on the host (the filters of `tarfile` do, and were led astray): no name leads through a link, a
    link leads nowhere above `target`, and a hard link only to a regular file.

    Raises:
        tarfile.TarError: a member would lie or lead outside of `target`, or is a device.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            _refuse_traps(member, target)
            member.mode = (0o755 if member.mode & 0o100 else 0o644) if member.isreg() else 0o755
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            # A link has no mode or owner of its own that would matter: setting them would follow it.
            plain = member.isreg() or member.isdir()
            if hasattr(tarfile, "data_filter"):
                tar.extract(member, target, set_attrs=plain, filter="fully_trusted")
            else:  # Python before 3.11.4, as in Debian 12
                tar.extract(member, target, set_attrs=plain)


def _refuse_traps(member: tarfile.TarInfo, target: Path) -> None:
    place, depth = _inside(member.name, target)
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise tarfile.ExtractError(f"{member.name!r} in the archive is a device or a pipe")
    if member.issym():
        link = PurePosixPath(member.linkname)
        ups = len(list(itertools.takewhile("..".__eq__, link.parts)))
        if link.is_absolute() or ".." in link.parts[ups:] or ups >= max(depth, 1):
            raise tarfile.ExtractError(f"the link {member.name!r} in the archive leads out of {target}")
    if place.is_symlink():
        raise tarfile.ExtractError(f"{member.name!r} comes twice in the archive, first as a link")
    if member.islnk():
        source, _ = _inside(member.linkname, target)
        if not (os.path.lexists(source) and stat.S_ISREG(source.lstat().st_mode)):
            raise tarfile.ExtractError(f"{member.name!r} in the archive is a hard link to no file")


def _inside(name: str, target: Path) -> tuple[Path, int]:
    """Where a name of an archive lies, and how deep. Not through links."""
    path = PurePosixPath(name)
    parents = (target.joinpath(*path.parts[:count]) for count in range(1, len(path.parts)))
    if path.is_absolute() or ".." in path.parts or any(parent.is_symlink() for parent in parents):
        raise tarfile.ExtractError(f"{name!r} in the archive leads out of {target}")
    return target / path, len(path.parts)
