"""Exit of a program, on the host or in a sandbox."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from agentrl.types.errors import AgentRLError, ToolServerEnded

KEPT = 1 << 16
"""Bytes of an output stream that are kept: the last ones."""


class ProgramFailed(AgentRLError):
    """The program of an agent could not do its work: a `user_error` of the episode."""


class ProgramKilled(ToolServerEnded):
    """The program of an agent was ended: by a signal, without what it reaches the policy through, or, in a sandbox, in
    any way that is no regular end.

    The machine may have done it, or a command that the policy had the program run.
    """


@dataclass(frozen=True)
class Ended:
    """Exit of a program.

    Attributes:
        code: exit code; as shells say it, or negative, after a signal.
        stdout: the end of what it wrote.
        stderr: as stdout.
        cut_off: whether it could not reach the policy any more.
    """

    code: int
    stdout: bytes
    stderr: bytes
    cut_off: bool = False

    @property
    def killed(self) -> str:
        """Cause of death if something else ended it; "" if it exited by itself."""
        if self.cut_off:
            return "its relay to the policy had ended"
        number = -self.code if self.code < 0 else self.code - 128
        return f"signal {number} ended it" if 0 < number < signal.NSIG else ""


class Tail:
    """The end of a stream."""

    def __init__(self) -> None:
        self.kept = b""

    def add(self, data: bytes) -> None:
        """Keeps what fits."""
        self.kept = (self.kept + data)[-KEPT:]
