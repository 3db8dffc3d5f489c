"""What a sandbox is, whatever backend makes it.

Two rules hold everywhere. A command that fails or times out is a RESULT; a sandbox that is lost is an EXCEPTION. What
a backend cannot enforce it refuses in `preflight`, before the first episode; it never weakens silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentrl.types.errors import AgentRLError, SandboxError

ExecOutcome = Literal["ok", "nonzero", "timeout", "oom", "signal", "output_limit"]

NetworkKind = Literal["none", "allow", "public"]

OUTPUT_LIMIT = 1 << 20
"""Bytes of an output stream that are kept unless the caller says otherwise: the first half and the last half."""


class SandboxUnavailable(SandboxError):
    """This machine cannot make such sandboxes at all; the remedy is the command that changes that."""


class SandboxImageUnusable(SandboxUnavailable):
    """The image or root file system of a spec is not on this machine, or cannot be a sandbox."""

    retried = False


class SandboxStartFailed(SandboxError):
    """One sandbox did not start, or its setup commands failed."""


class SandboxLost(SandboxError):
    """A sandbox that ran is gone: killed, crashed, or silent."""


class SandboxBroken(SandboxLost):
    """A sandbox is gone, and its own programs did it: there is evidence, which the message names."""


class SandboxExpired(SandboxLost):
    """A sandbox is gone because it is older than its `ttl_s`."""


class CapabilityMissing(AgentRLError):
    """The spec asks for what the backend cannot enforce. Not an infrastructure failure: retrying is useless."""


HOST = r"^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?(:[0-9]{1,5})?$"
"""An entry of a list of hosts: host, *.domain, or IPv4 address; ports 80 and 443 unless :port follows."""


TAKEN = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr")
"""Folders of the root that the system or a sandbox needs: no further writable folder lies in them."""


class NetworkAllow(BaseModel):
    """Network to some hosts only, through a proxy that refuses all others.

    Programs find the proxy by `HTTP_PROXY` and `HTTPS_PROXY`; there is no other way out, and no name resolution.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: tuple[Annotated[str, Field(pattern=HOST)], ...] = Field(
        min_length=1, description="host, *.domain, or IPv4 address; ports 80 and 443 unless :port follows."
    )


class SandboxSpec(BaseModel):
    """What a sandbox is like. A bound left at None takes the backend's default; a set one is enforced or refused.

    Frozen; the keys are those of `sandbox.spec` in a recipe.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = Field(None, description="agentrl/NAME (see agentrl sandbox build) or another container image.")
    rootfs: str | None = Field(None, description="Folder to use as the root file system; default: the host's /usr.")
    cpu: float | None = Field(None, gt=0, description="Cores' worth of time at most.")
    memory_mb: int | None = Field(None, ge=32, description="Memory of all processes and files together, MiB.")
    pids: int | None = Field(None, ge=8, description="Processes and threads at the same time.")
    disk_mb: int | None = Field(None, ge=1, description="Size of each writable folder, MiB.")
    network: Literal["none", "public"] | NetworkAllow = Field(
        "none", description="none: not even loopback to the host; {allow: [host, ...]}: these only; public: any."
    )
    workdir: str = Field("/work", pattern=r"^/[^\x00]*$", description="Writable folder where commands start.")
    writable: tuple[str, ...] = Field((), description="Further writable folders, empty at the start: [/app, /logs].")
    env: dict[str, str] = Field({}, description="Added to the small default environment.")
    files: dict[str, str | bytes] = Field({}, description="Path (relative to workdir, or absolute) to content.")
    setup: tuple[str, ...] = Field((), description="Shell commands run once at the start; a failure fails the start.")
    setup_timeout_s: float = Field(300, gt=0, description="For each setup command.")
    ttl_s: float = Field(3600, gt=0, description="A sandbox older than this is killed, whatever it does.")
    snapshots: bool = Field(False, description="Whether its files can be snapshot.")

    @property
    def own_folders(self) -> tuple[str, ...]:
        """The workdir and the further writable folders, the outer ones first."""
        outer = [each for each in self.writable if not any(each.startswith(f"{other}/") for other in self.writable)]
        return tuple(sorted({self.workdir, *outer}))

    @property
    def network_kind(self) -> NetworkKind:
        """`allow` if there is a list of hosts."""
        return "allow" if isinstance(self.network, NetworkAllow) else self.network

    @field_validator("writable")
    @classmethod
    def _free(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            parts = each.split("/")[1:]
            if not each.startswith("/") or not {"", ".", ".."}.isdisjoint(parts) or parts[0] in TAKEN or "\0" in each:
                raise ValueError(f"{each!r} is no folder such as /app or /opt/data; never in {', '.join(TAKEN)}")
        return value

    @field_validator("setup", mode="before")
    @classmethod
    def _one_command(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


@dataclass(frozen=True)
class Capabilities:
    """What a backend enforces on this machine, and by which means (`none`: cannot be asked for).

    Attributes:
        isolation: strength of the wall: `namespace`, `container`, `vm`.
        networks: the values of `SandboxSpec.network_kind` that it supports.
        snapshots: whether `SandboxSpec.snapshots` can be asked for.
        endpoints: whether services inside can be reached by `endpoint`.
        sockets: what bounds the memory of TCP sockets; on cgroup v1 an eighth of `memory_mb`, beside it.
        users: whether `exec` can run as another user of the sandbox.
        syscalls: what filters system calls.
        note: what a person should know, for example why a means is weak.
    """

    isolation: str
    cpu: str
    memory: str
    pids: str
    disk: str
    networks: tuple[NetworkKind, ...]
    images: bool
    rootfs: bool
    snapshots: bool = False
    endpoints: bool = False
    users: bool = False
    syscalls: str = "none"
    sockets: str = "none"
    note: str = ""


@dataclass(frozen=True)
class ExecResult:
    """What came of one command.

    Attributes:
        code: exit code; 128 + n after signal n (as shells say it); None if nothing of it could be learnt.
        outcome: `timeout` and `output_limit` were ended by the sandbox, `oom` by the kernel.
        stdout: exact bytes while `stdout_dropped` is 0; else head, a line that says how much is missing, and tail.
        stderr: as stdout. Empty for shell sessions, whose two streams are one.
        stdout_dropped: bytes cut from the middle of stdout.
        duration_s: wall time inside the sandbox.
        peak_mem_mb: most memory, MiB, that the largest of its processes had resident (as `getrusage` has it: the
            program itself, and those that it waited for). None where that is no more than the toolbox ever had
            itself (some 10 MiB, or a few times the largest file that was written), and for sessions.
    """

    code: int | None
    outcome: ExecOutcome
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    duration_s: float = 0.0
    peak_mem_mb: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.outcome == "ok"

    @property
    def text(self) -> str:
        """Both streams as text; bytes that are not UTF-8 are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True)
class CellResult:
    """What came of one cell of Python.

    Attributes:
        outcome: `error`: it raised, see `traceback`; `timeout` and `died`: see `note`.
        output: what it printed, both streams.
        value: repr of the last line, if that is an expression whose value is not None.
        dropped: bytes cut from the middle of the output.
        note: what happened to the kernel, for example that it lost its variables. Empty if nothing did.
    """

    outcome: Literal["ok", "error", "timeout", "died", "oom", "output_limit"]
    output: str = ""
    value: str | None = None
    traceback: str | None = None
    dropped: int = 0
    note: str = ""
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """All of it, as a notebook shows it."""
        return "\n".join(part.rstrip("\n") for part in (self.output, self.value, self.traceback, self.note) if part)


@dataclass(frozen=True)
class FileInfo:
    """One entry of a folder. `size` in bytes; `kind` of a link is `link`, whatever it points at."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int


@dataclass(frozen=True)
class Health:
    """How a sandbox is. Numbers that the backend cannot know are None.

    Attributes:
        processes: inside, the toolbox included.
        memory_mb: in use now, MiB.
        oom_kills: processes that the kernel killed for memory since the start.
        loss: if it is not alive: why, as its other methods raise it.
    """

    alive: bool
    processes: int | None = None
    memory_mb: float | None = None
    oom_kills: int | None = None
    loss: SandboxLost | None = None


class Process(Protocol):
    """A process that the caller talks to. Its output waits in its pipes until read: nothing piles up on the host."""

    pid: int

    async def read(self, stream: Literal["stdout", "stderr"] = "stdout", size: int = 65536) -> bytes:
        """Waits for some bytes; empty at the end of the stream. One reader a stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes all of `data` to stdin. Raises BrokenPipeError if nobody reads it any more."""
        ...

    async def close_stdin(self) -> None:
        """Ends stdin."""
        ...

    async def wait(self, timeout_s: float) -> ExecResult | None:
        """Its result (without output) once it has ended and its tree is gone; None if that takes too long."""
        ...

    async def kill(self) -> None:
        """Ends it and everything that it started: TERM, grace, KILL. Returns when none is left."""
        ...


class Shell(Protocol):
    """A shell that keeps its folder, variables and functions from one command to the next."""

    name: str

    async def run(self, command: str, timeout_s: float = 60.0, output_limit: int = OUTPUT_LIMIT) -> ExecResult:
        """Runs a command; both streams are in `stdout`. One command at a time: others wait.

        A command that times out is killed. The shell lives on; if that took a restart, the folder is kept and
        `stderr` says that variables are lost.
        """
        ...

    async def cwd(self) -> str:
        """The shell's folder as the kernel knows it, not as the shell prints it."""
        ...

    async def interrupt(self) -> None:
        """Ends the running command, if any, as a timeout would."""
        ...

    async def restart(self) -> None:
        """Kills the shell and all that it started; the next command gets a fresh one in the workdir."""
        ...


class PythonKernel(Protocol):
    """A Python that keeps its variables from one cell to the next."""

    name: str

    async def run(self, code: str, timeout_s: float = 60.0, output_limit: int = OUTPUT_LIMIT) -> CellResult:
        """Runs a cell. A cell that times out is interrupted; one that does not heed that is killed with the kernel."""
        ...

    async def restart(self) -> None:
        """Forgets everything."""
        ...


class Sandbox(Protocol):
    """A place where commands of an agent run. `async with` closes it."""

    label: str
    spec: SandboxSpec

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
        """Runs a program to its end, and ends everything that it started, `setsid` children included.

        Args:
            command: an argument list, or a string for bash.
            cwd: default: the workdir.
            env: added to the sandbox's.
            user: name or number; default: the sandbox's own, who is not root.
            output_limit: bytes kept of each stream.

        Raises:
            SandboxLost: the sandbox is gone. (`SandboxBroken`, `SandboxExpired`: it, or its age, is to blame.)
            CapabilityMissing: the backend cannot run programs as that user.
            ValueError: an empty command, a NUL byte in it, or a timeout that is not finite and above zero.
        """
        ...

    async def spawn(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a program to talk to. It ends with the sandbox at the latest.

        Raises:
            SandboxLost: the sandbox is gone.
            OSError: it could not be started (FileNotFoundError, PermissionError, ...).
        """
        ...

    async def session(self, name: str = "main") -> Shell:
        """The shell of that name; made when first asked for."""
        ...

    async def python(self, name: str = "main") -> PythonKernel:
        """The Python kernel of that name; made when first asked for."""
        ...

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """A file's content.

        Raises:
            OSError: as `open` would (FileNotFoundError, IsADirectoryError, ...), or it is larger than `limit`.
            SandboxLost: the sandbox is gone. (So do all that follow.)
        """
        ...

    async def write(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        """Writes a file; missing parent folders are made. Raises OSError as `open` would."""
        ...

    async def list(self, path: str = ".", *, limit: int = 1 << 16) -> list[FileInfo]:
        """Entries of a folder, sorted by name.

        Raises:
            OSError: as `os.listdir` would, or it has more than `limit` entries.
        """
        ...

    async def put(self, source: Path, path: str) -> None:
        """Copies a host file, or the content of a host folder, into the folder `path`, in at most 300 s.

        Modes, times and symbolic links are kept; hard links become files of their own.

        Raises:
            OSError: the one cannot be read or the other not written.
        """
        ...

    async def get(self, path: str, target: Path) -> None:
        """Copies a file or the content of a folder into the host folder `target`, in at most 300 s.

        A link that `path` is, is followed (inside). Links below it are kept, hard links become files of their own,
        sockets are left out, holes are written out, and modes are plain: 755 or 644. What was copied before an error
        stays.

        Raises:
            OSError: there is no such file, it cannot be read, or it is not for the host: more than 256 MiB or
                100,000 files, deeper than 128 folders, a device, a pipe, or a link that leads out of `target`.
            SandboxUnavailable: `target` cannot be written.
        """
        ...

    async def endpoint(self, port: int) -> str:
        """Where a program of this machine reaches a service inside that listens on that port of its loopback.

        It works whatever the sandbox's network is, ends with the sandbox, and is open to every user of this
        machine. Where nothing listens inside, connections are hung up.

        Returns:
            `host:port`; the same for the same port.

        Raises:
            CapabilityMissing: the backend has no way in.
            SandboxLost: the sandbox is gone.
        """
        ...

    async def snapshot(self) -> str:
        """Keeps the files of the writable folders and `/tmp`, and names what was kept. Processes are no part.

        Raises:
            CapabilityMissing: the spec did not ask for snapshots.
            OSError: some file cannot be kept.
        """
        ...

    async def restore(self, ref: str) -> None:
        """Ends all processes and sessions, and puts the files back as a snapshot of this backend kept them.

        What `spawn`, `session` and `python` gave before that raises SandboxLost from then on.

        Raises:
            CapabilityMissing: as `snapshot`.
            KeyError: there is no such snapshot.
            SandboxLost: it was closed, or its `ttl_s` ended.
            SandboxStartFailed: it did not come up again; the sandbox is lost.
        """
        ...

    async def fork(self, number: int) -> Sequence[Sandbox]:
        """That many new sandboxes with the files that this one has now.

        Raises:
            ValueError: fewer than one.
            Exception: what `snapshot` and `create` do; none of them stays.
        """
        ...

    async def health(self) -> Health:
        """How it is. Never raises; comes within seconds: a sandbox that does not answer is not alive."""
        ...

    def cpu_s(self) -> float | None:
        """Processor time that all its processes took so far, those that have ended included; None: nobody counts it.

        The sandbox is not asked: its programs cannot delay the answer.
        """
        ...

    async def close(self) -> None:
        """Kills everything and frees everything. May be called twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    """Makes sandboxes."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What it enforces on this machine.

        Raises:
            SandboxUnavailable: it cannot run here.
        """
        ...

    def preflight(self, spec: SandboxSpec) -> None:
        """Checks, before the first episode, that such sandboxes can be made.

        Raises:
            SandboxUnavailable: the backend cannot run here; the remedy is the command that changes that.
            CapabilityMissing: the spec asks for what it cannot enforce.
        """
        ...

    async def create(self, spec: SandboxSpec, *, label: str = "") -> Sandbox:
        """A fresh sandbox.

        Args:
            label: whose it is (an episode id), for messages.

        Raises:
            SandboxStartFailed: it did not come up.
        """
        ...

    async def reap(self, *, dry: bool = False) -> list[str]:
        """Removes what owners that were killed left on this machine; every `create` of a new backend does so, too.

        Args:
            dry: only look.

        Returns:
            What was (or would be) removed, a line each: processes, control groups, folders, containers, ...

        Raises:
            SandboxUnavailable: the backend cannot run here.
        """
        ...

    async def close(self) -> None:
        """Closes every sandbox that it made. May be called twice."""
        ...
