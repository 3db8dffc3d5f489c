"""Interface of a sandbox for its processes, sessions and endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agentrl.sandbox.toolbox.wire import Response, Wire
from agentrl.types.sandbox import ExecOutcome, ExecResult, SandboxSpec


class Owner(Protocol):
    """Sandbox of a process, a session or an endpoint."""

    spec: SandboxSpec
    wire: Wire

    def result(self, reply: Response, stdout: bytes, stderr: bytes = b"", code: int | None = None) -> ExecResult:
        """Converts a reply to a result; `code` if the reply has none."""
        ...

    def outcome(self, fields: Mapping[str, str], code: int | None) -> ExecOutcome:
        """Returns the outcome of a program."""
        ...
