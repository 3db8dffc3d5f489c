"""The `shell` tool: a bash in the sandbox that keeps its folder and variables between calls."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from agentrl.sandbox.toolbox.wire import MARGIN_S
from agentrl.tools.base import Tool, tool
from agentrl.tools.words import Word
from agentrl.types.sandbox import ExecResult, Sandbox
from agentrl.types.sandbox import Shell as Session
from agentrl.types.task import Task

GRACE_S = MARGIN_S + 5.0
"""The sandbox ends a command that times out, and keeps the rest. If it does not manage, it is lost, which must be seen
before the runner's deadline makes an observation of it."""


class Shell(Tool):
    """A shell session for the episode.

    Args:
        timeout_s: bound on one command.
        output_limit: bytes of output that the model is shown of one command: the head and the tail.
        state: "history": the commands of the episode and what they put out are the state, so two episodes of a task are
            in the same one as long as they ran and saw the same. None: the shell has no `state_key`, for two turns in
            the same folder are rarely in the same state.
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
        """Takes a session of its own."""
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
        """Whether `state` was set, or a class of its own says what the state is."""
        return self._history is not None or type(self).state_key is not Shell.state_key

    def state_key(self) -> str | None:
        """A hash of the commands and of what the model was shown of them."""
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
