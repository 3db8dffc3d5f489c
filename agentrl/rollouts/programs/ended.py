"""How a program ended, wherever it ran."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.types.errors import AgentRLError

KEPT = 1 << 16
"""Bytes of an output stream that are kept: the last ones."""


class ProgramFailed(AgentRLError):
    """The program of an agent could not do its work: a `user_error` of the episode."""


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        code: exit code; not 0 after a signal.
        stdout: the end of what it wrote.
        stderr: as stdout.
    """

    code: int
    stdout: bytes
    stderr: bytes


class Tail:
    """The end of a stream."""

    def __init__(self) -> None:
        self.kept = b""

    def add(self, data: bytes) -> None:
        """Keeps what fits."""
        self.kept = (self.kept + data)[-KEPT:]
