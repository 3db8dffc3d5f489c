"""A sandbox in memory that answers commands by a table: to inject the faults that a real one seldom has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.types.sandbox import ExecResult, Health, SandboxSpec

Answer = ExecResult | Callable[[bytes], ExecResult]
OK = ExecResult(0, "ok")


def failed(code: int, said: str = "") -> ExecResult:
    """The result of a command that ended with a code and wrote an error."""
    return ExecResult(code, "nonzero", stderr=said.encode())


def said(text: str) -> ExecResult:
    """The result of a command that wrote a text."""
    return ExecResult(0, "ok", stdout=text.encode())


@dataclass
class ScriptedSandbox:
    """A sandbox without programs.

    Attributes:
        answers: by a part of the command's words, its result, or a function of its stdin; the first that fits. A
            command that none fits succeeds and writes nothing.
        processes: number of processes that `health` reports.
        broken: the error of `put`, `get` and `write`.
        files: content by path; `put` records the host path, by its target.
        ran: the words of all commands, in order.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    spec: SandboxSpec = field(default_factory=lambda: SandboxSpec(workdir="/app", image="agentrl-test/none"))
    processes: int = 1
    broken: Exception | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    placed: dict[str, list[str]] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    label: str = "scripted"

    async def exec(self, command: str | Sequence[str], *, stdin: bytes = b"", **settings: Any) -> ExecResult:
        """Answers a command from the table."""
        words = command if isinstance(command, str) else " ".join(command)
        self.ran.append(words)
        answer = next((found for part, found in self.answers.items() if part in words), OK)
        return answer if isinstance(answer, ExecResult) else answer(stdin)

    async def spawn(self, command: Sequence[str], **settings: Any) -> _Silent:
        """Starts a process that says nothing."""
        self.ran.append(" ".join(command))
        return _Silent()

    async def read(self, path: str, **settings: Any) -> bytes:
        """Returns a file."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def write(self, path: str, content: str | bytes, **settings: Any) -> None:
        """Keeps a file."""
        if self.broken is not None:
            raise self.broken
        self.files[path] = content.encode() if isinstance(content, str) else content

    async def put(self, source: Path, path: str) -> None:
        """Records the names that a folder of the host has, or the name of a file."""
        if self.broken is not None:
            raise self.broken
        names = [each.name for each in source.iterdir()] if source.is_dir() else [source.name]
        self.placed.setdefault(path, []).extend(sorted(names))

    async def get(self, path: str, target: Path) -> None:
        """Copies a file to the host."""
        if self.broken is not None:
            raise self.broken
        (target / Path(path).name).write_bytes(self.files.get(path, b""))

    async def health(self) -> Health:
        """Reports the processes."""
        return Health(alive=True, processes=self.processes)

    def cpu_s(self) -> float | None:
        """Counts nothing."""
        return None

    async def close(self) -> None:
        """Ends nothing."""


class _Silent:
    pid = 1

    async def read(self, *given: Any, **settings: Any) -> bytes:
        return b""

    async def write(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...
