"""The `shell` tool: a bash session in the sandbox; folder and variables persist between calls."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from agentrl.sandbox.toolbox.wire import MARGIN_S
from agentrl.tools.base import Tool, tool
from agentrl.tools.words import Word
from agentrl.types.sandbox import ExecResult, Sandbox
from agentrl.types.sandbox import ShellSession as Session
from agentrl.types.task import Task

GRACE_S = MARGIN_S + 5.0
"""Margin for the sandbox to kill a command that timed out. If it fails, the sandbox is lost, which must be detected
before the runner's deadline turns the timeout into an observation."""


class Shell(Tool):
    """Shell session of the episode.

    Args:
        timeout_s: timeout of one command.
        output_limit: maximum bytes of output shown to the model per command: head and tail.
        state: "history": the state is the commands and outputs of the episode, so two episodes of a task share a state
            as long as they ran and saw the same. None: no `state_key`, because two turns in the same folder rarely have
            the same state.
    """

    needs_sandbox = True

    def __init__(
        self, timeout_s: float = 60.0, output_limit: int = 16_000, state: Literal["history"] | None = None
    ) -> None:
        self.command_s = timeout_s
        self.timeout_s = timeout_s + GRACE_S
        self.output_limit = output_limit
        self._history = hashlib.sha256() if state else None

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Opens a session."""
        assert sandbox is not None
        self.session: Session = await sandbox.session("shell-tool")

    @tool
    async def shell(self, command: Word) -> str:
        """Run a command in a persistent bash session. Folder and variables are kept from call to call.

        Args:
            command: what to run; may be several lines.
        """
        result = await self.session.run(command, timeout_s=self.command_s, output_limit=self.output_limit)
        shown = "\n".join(part for part in (result.text.rstrip("\n"), self._ending(result)) if part)
        if self._history is not None:
            self._history.update(json.dumps([command, shown]).encode())
        return shown

    @property
    def knows_state(self) -> bool:
        """True if `state` was set, or a subclass defines `state_key`."""
        return self._history is not None or type(self).state_key is not Shell.state_key

    def state_key(self) -> str | None:
        """Returns a hash of the commands and their output as shown to the model."""
        return self._history.hexdigest()[:16] if self._history is not None else None

    def _ending(self, result: ExecResult) -> str:
        return {
            "ok": "",
            "nonzero": f"[exit code {result.code}]",
            "timeout": f"[timed out after {self.command_s:g} s and was ended]",
            "oom": "[killed: out of memory]",
            "signal": f"[ended by a signal, exit code {result.code}]",
            "output_limit": "[ended: far too much output]",
        }[result.outcome]
