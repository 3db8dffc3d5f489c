"""Sandbox contract, the same for all backends.

Two rules hold everywhere. A command that fails or times out is a RESULT; a lost sandbox is an EXCEPTION. A backend
refuses in `preflight`, before the first episode, limits that it cannot enforce; it never weakens them silently.
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
"""Default maximum of bytes of an output stream: the first half and the last half are returned."""


class SandboxUnavailable(SandboxError):
    """This machine cannot run these sandboxes at all; the remedy is a command that changes it."""


class SandboxImageUnusable(SandboxUnavailable):
    """The image or root file system of a spec is not on this machine, or cannot be a sandbox."""

    retried = False


class SandboxStartFailed(SandboxError):
    """One sandbox did not start, or its setup commands failed."""


class SandboxLost(SandboxError):
    """A sandbox that ran is gone: killed, crashed, or silent."""


class SandboxBroken(SandboxLost):
    """A sandbox is gone because of its own programs; the message names the evidence."""


class SandboxExpired(SandboxLost):
    """A sandbox is gone because it is older than its `ttl_s`."""


class CapabilityMissing(AgentRLError):
    """The spec asks for a feature that the backend cannot enforce. Not an infrastructure failure, and not retried."""


HOST = r"^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?(:[0-9]{1,5})?$"
"""Entry of a list of hosts: host, *.domain, or IPv4 address; ports 80 and 443 unless :port follows."""


TAKEN = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr")
"""Root folders that the system or a sandbox needs: further writable folders cannot be in them."""


class NetworkAllow(BaseModel):
    """Network to some hosts only, through a proxy that refuses all others.

    Programs find the proxy by `HTTP_PROXY` and `HTTPS_PROXY`; it is the only way out. Names are not resolved inside.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: tuple[Annotated[str, Field(pattern=HOST)], ...] = Field(
        min_length=1, description="host, *.domain, or IPv4 address; ports 80 and 443 unless :port follows."
    )


class SandboxSpec(BaseModel):
    """Specification of a sandbox. A limit of None takes the backend's default; a set one is enforced or refused.

    Frozen; the keys are those of `sandbox.spec` in a recipe.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = Field(
        None,
        description="agentrl/NAME (agentrl sandbox build) or a container image (namespace: agentrl sandbox unpack).",
    )
    rootfs: str | None = Field(None, description="Folder to use as the root file system; default: the host's /usr.")
    cpu: float | None = Field(None, gt=0, description="Cores' worth of time at most.")
    memory_mb: int | None = Field(None, ge=32, description="Memory of all processes and files together, MiB.")
    pids: int | None = Field(None, ge=8, description="Processes and threads at the same time.")
    disk_mb: int | None = Field(None, ge=1, description="Size of each writable folder, MiB.")
    network: Literal["none", "public"] | NetworkAllow = Field(
        "none", description="none: not even loopback to the host; {allow: [host, ...]}: these only; public: any."
    )
    workdir: str = Field(
        "/work",
        pattern=r"^/[^\x00]*$",
        description="Writable folder where commands start. It begins with the image's files in it, else empty.",
    )
    writable: tuple[str, ...] = Field(
        (), description="Further writable folders: [/app, /logs]. They begin as workdir does."
    )
    env: dict[str, str] = Field({}, description="Added to the small default environment.")
    files: dict[str, str | bytes] = Field({}, description="Path (relative to workdir, or absolute) to content.")
    setup: tuple[str, ...] = Field((), description="Shell commands run once at the start; a failure fails the start.")
    setup_timeout_s: float = Field(300, gt=0, description="For each setup command.")
    ttl_s: float = Field(3600, gt=0, description="A sandbox older than this is killed, whatever it does.")
    snapshots: bool = Field(False, description="Whether its files can be snapshot.")

    def changed(self, **fields: Any) -> SandboxSpec:
        """Returns a spec with other values of some fields.

        Raises:
            ValidationError: a value is not of the field's form.
        """
        return SandboxSpec.model_validate({**self.model_dump(), **fields}) if fields else self

    @property
    def own_folders(self) -> tuple[str, ...]:
        """Workdir and further writable folders, the outer ones first."""
        outer = [each for each in self.writable if not any(each.startswith(f"{other}/") for other in self.writable)]
        return tuple(sorted({self.workdir, *outer}))

    @property
    def folders_of_image(self) -> tuple[str, ...]:
        """Own folders that begin with the files of an image. Folders that a system needs are never among them."""
        return tuple(each for each in self.own_folders if each.strip("/").partition("/")[0] not in ("", *TAKEN))

    @property
    def network_kind(self) -> NetworkKind:
        """Kind of network: `allow` for a list of hosts."""
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
    """Limits that a backend enforces on this machine, and by which means (`none`: unsupported).

    Attributes:
        isolation: strength of the wall: `namespace`, `container`, `vm`.
        networks: the values of `SandboxSpec.network_kind` that it supports.
        snapshots: whether `SandboxSpec.snapshots` can be asked for.
        endpoints: whether services inside can be reached by `endpoint`.
        sockets: limit on the memory of TCP sockets; on cgroup v1 an additional eighth of `memory_mb`.
        users: whether `exec` can run as another user of the sandbox.
        syscalls: filter of system calls.
        note: remark for people, for example why a means is weak.
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
    """Result of one command.

    Attributes:
        code: exit code; 128 + n after signal n (as in shells); None if unknown.
        outcome: `timeout` and `output_limit` were ended by the sandbox, `oom` by the kernel.
        stdout: exact bytes while `stdout_dropped` is 0; else head, a line with the number of missing bytes, and tail.
        stderr: as stdout. Empty for shell sessions, which merge both streams.
        stdout_dropped: bytes cut from the middle of stdout.
        duration_s: wall time inside the sandbox.
        peak_mem_mb: peak resident memory, MiB, of the largest of its processes (from `getrusage`: the program itself,
            and those that it waited for). None if that is no more than the peak of the toolbox itself (some 10 MiB,
            or a few times the largest file that was written), and for sessions.
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
        """True if it ended by itself with exit code 0."""
        return self.outcome == "ok"

    @property
    def text(self) -> str:
        """Both streams as text; bytes that are not UTF-8 are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True)
class CellResult:
    """Result of one cell of Python.

    Attributes:
        outcome: `error`: it raised, see `traceback`; `timeout` and `died`: see `note`.
        output: printed text, both streams.
        value: repr of the last line, if that is an expression whose value is not None.
        dropped: bytes cut from the middle of the output.
        note: event of the kernel, for example the loss of its variables. Empty if none.
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
        """Complete output, as a notebook shows it."""
        return "\n".join(part.rstrip("\n") for part in (self.output, self.value, self.traceback, self.note) if part)


@dataclass(frozen=True)
class FileInfo:
    """One entry of a folder. `size` in bytes; `kind` of a link is `link`, whatever it points at."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int


@dataclass(frozen=True)
class Health:
    """State of a sandbox. Numbers that the backend cannot know are None.

    Attributes:
        processes: inside, the toolbox included.
        memory_mb: in use now, MiB.
        oom_kills: processes that the kernel killed for memory since the start.
        loss: if it is not alive: the error that its other methods raise.
    """

    alive: bool
    processes: int | None = None
    memory_mb: float | None = None
    oom_kills: int | None = None
    loss: SandboxLost | None = None


class Process(Protocol):
    """Process with which the caller exchanges data. Unread output stays in its pipes, not on the host."""

    pid: int

    async def read(self, stream: Literal["stdout", "stderr"] = "stdout", size: int = 65536) -> bytes:
        """Waits for some bytes; empty at the end of the stream. One reader a stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes all of `data` to stdin. Raises BrokenPipeError if stdin is closed inside."""
        ...

    async def close_stdin(self) -> None:
        """Closes stdin."""
        ...

    async def wait(self, timeout_s: float) -> ExecResult | None:
        """Waits until it and its process tree have ended and returns the result (without output); None after
        `timeout_s`.
        """
        ...

    async def kill(self) -> None:
        """Ends it and all processes that it started: TERM, grace, KILL. Returns when none is left."""
        ...


class ShellSession(Protocol):
    """Shell that keeps its folder, variables and functions from one command to the next."""

    name: str

    async def run(self, command: str, timeout_s: float = 60.0, output_limit: int = OUTPUT_LIMIT) -> ExecResult:
        """Runs a command; both streams are in `stdout`. One command at a time: others wait.

        A command that times out is killed. The shell survives; if it had to be restarted, the folder is restored and
        `stderr` reports the loss of variables.
        """
        ...

    async def cwd(self) -> str:
        """Returns the shell's folder from the kernel, not from the output of the shell."""
        ...

    async def interrupt(self) -> None:
        """Ends the running command, if any, as a timeout would."""
        ...

    async def restart(self) -> None:
        """Kills the shell and all processes that it started; the next command gets a fresh one in the workdir."""
        ...


class PythonKernel(Protocol):
    """Python process that keeps its variables from one cell to the next."""

    name: str

    async def run(self, code: str, timeout_s: float = 60.0, output_limit: int = OUTPUT_LIMIT) -> CellResult:
        """Runs a cell. A cell that times out is interrupted; if it ignores that, it is killed with the kernel."""
        ...

    async def restart(self) -> None:
        """Restarts the kernel without its variables."""
        ...


class Sandbox(Protocol):
    """Isolated environment for the commands of an agent. `async with` closes it."""

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
        """Runs a program to its end, and ends all processes that it started, `setsid` children included.

        Args:
            command: an argument list, or a string for bash.
            cwd: default: the workdir.
            env: added to the sandbox's.
            user: name or number; default: the sandbox's user, which is not root.
            output_limit: maximum of bytes of each stream.

        Raises:
            SandboxLost: the sandbox is gone. (`SandboxBroken`, `SandboxExpired`: it, or its age, is to blame.)
            CapabilityMissing: the backend cannot run programs as that user.
            ValueError: an empty command, a NUL byte in it, or a timeout that is not finite and above zero.
        """
        ...

    async def spawn(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a program and returns its process. It ends with the sandbox at the latest.

        Raises:
            SandboxLost: the sandbox is gone.
            OSError: it could not be started (FileNotFoundError, PermissionError, ...).
        """
        ...

    async def session(self, name: str = "main") -> ShellSession:
        """Returns the shell of that name; created on first use."""
        ...

    async def python(self, name: str = "main") -> PythonKernel:
        """Returns the Python kernel of that name; created on first use."""
        ...

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """Returns a file's content.

        Raises:
            OSError: as `open` would (FileNotFoundError, IsADirectoryError, ...), or it is larger than `limit`.
            SandboxLost: the sandbox is gone. (So do all that follow.)
        """
        ...

    async def write(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        """Writes a file; missing parent folders are created. Raises OSError as `open` would."""
        ...

    async def list(self, path: str = ".", *, limit: int = 1 << 16) -> list[FileInfo]:
        """Returns the entries of a folder, sorted by name.

        Raises:
            OSError: as `os.listdir` would, or it has more than `limit` entries.
        """
        ...

    async def put(self, source: Path, path: str) -> None:
        """Copies a host file, or the content of a host folder, into the folder `path`, in at most 300 s.

        Modes, times and symbolic links are preserved; hard links become separate files.

        Raises:
            OSError: the source cannot be read or the target not written.
        """
        ...

    async def get(self, path: str, target: Path) -> None:
        """Copies a file or the content of a folder into the host folder `target`, in at most 300 s.

        If `path` is a link, it is followed (inside). Links below it are preserved, hard links become separate files,
        sockets are left out, holes are written out, and modes are 755 or 644. Files copied before an error remain.

        Raises:
            OSError: the file does not exist, cannot be read, or is not fit for the host: more than 256 MiB or 100,000
                files, deeper than 128 folders, a device, a pipe, or a link that leads out of `target`.
            SandboxUnavailable: `target` cannot be written.
        """
        ...

    async def endpoint(self, port: int) -> str:
        """Returns the address on this machine of a service inside that listens on that port of its loopback.

        It works with every kind of network, ends with the sandbox, and is open to every user of this machine.
        Connections are closed if no service listens inside.

        Returns:
            `host:port`; the same for the same port.

        Raises:
            CapabilityMissing: the backend does not support endpoints.
            SandboxLost: the sandbox is gone.
        """
        ...

    async def snapshot(self) -> str:
        """Saves the files of the writable folders and `/tmp`; returns the snapshot's name. Processes are not included.

        Raises:
            CapabilityMissing: the spec did not ask for snapshots.
            OSError: some file cannot be saved.
        """
        ...

    async def restore(self, ref: str) -> None:
        """Ends all processes and sessions, and restores the files of a snapshot of this backend.

        Earlier results of `spawn`, `session` and `python` raise SandboxLost from then on.

        Raises:
            CapabilityMissing: as `snapshot`.
            KeyError: the snapshot does not exist.
            SandboxLost: it was closed, or its `ttl_s` ended.
            SandboxStartFailed: it did not come up again; the sandbox is lost.
        """
        ...

    async def fork(self, number: int) -> Sequence[Sandbox]:
        """Creates that many new sandboxes with the current files of this one.

        Raises:
            ValueError: fewer than one.
            Exception: errors of `snapshot` and `create`; none of the new sandboxes remains.
        """
        ...

    async def health(self) -> Health:
        """Returns the sandbox's state within seconds. Never raises: a sandbox that does not answer is not alive."""
        ...

    def cpu_s(self) -> float | None:
        """Returns the processor time of all its processes so far, ended ones included; None: not counted.

        The sandbox is not asked: its programs cannot delay the answer.
        """
        ...

    async def close(self) -> None:
        """Kills all processes and frees all resources. May be called twice."""
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
        """Limits that the backend enforces on this machine.

        Raises:
            SandboxUnavailable: it cannot run here.
        """
        ...

    def preflight(self, spec: SandboxSpec) -> None:
        """Checks, before the first episode, that these sandboxes can be made.

        Raises:
            SandboxUnavailable: the backend cannot run here; the remedy is a command that changes it.
            CapabilityMissing: the spec asks for a feature that it cannot enforce.
        """
        ...

    async def create(self, spec: SandboxSpec, *, label: str = "") -> Sandbox:
        """Creates a sandbox.

        Args:
            label: owner (an episode id), for messages.

        Raises:
            SandboxStartFailed: it did not come up.
        """
        ...

    async def reap(self, *, dry: bool = False) -> list[str]:
        """Removes leftovers of killed owners from this machine; every `create` of a new backend does so, too.

        Args:
            dry: only look.

        Returns:
            Removed objects (or those that would be), a line each: processes, control groups, folders, containers, ...

        Raises:
            SandboxUnavailable: the backend cannot run here.
        """
        ...

    async def close(self) -> None:
        """Closes every sandbox that it made. May be called twice."""
        ...
