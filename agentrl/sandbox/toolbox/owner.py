"""What a process, a session or an endpoint takes from the sandbox that it lives in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agentrl.sandbox.toolbox.wire import Response, Wire
from agentrl.types.sandbox import ExecOutcome, ExecResult, SandboxSpec


class Owner(Protocol):
    """The sandbox of a process, a session or an endpoint."""

    spec: SandboxSpec
    wire: Wire

    def result(self, reply: Response, stdout: bytes, stderr: bytes = b"", code: int | None = None) -> ExecResult:
        """The result that a reply tells; `code` if the reply itself carries none."""
        ...

    def outcome(self, fields: Mapping[str, str], code: int | None) -> ExecOutcome:
        """How a program ended."""
        ...
