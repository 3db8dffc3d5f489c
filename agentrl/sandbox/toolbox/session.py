"""Shells and Python kernels of a sandbox, which keep their state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from agentrl.sandbox.toolbox.owner import Owner
from agentrl.sandbox.toolbox.wire import Response, finite
from agentrl.types.sandbox import OUTPUT_LIMIT, CellResult, ExecResult

_LOST_STATE = {
    "shell": "[the shell {why}: the next command runs in a fresh one, in the same folder; its variables are lost]\n",
    "python": "[the kernel {why}: the next cell runs in a fresh one; its variables are lost]",
}


class _Session:
    """Base of shells and kernels: one request at a time, also after a cancelled one.

    They are lost when the sandbox is restored.
    """

    kind: Literal["shell", "python"]

    def __init__(self, sandbox: Owner, name: str) -> None:
        self.name = name
        self.sandbox, self.wire = sandbox, sandbox.wire
        self.id = f"{self.kind}:{name}"
        self.folder = sandbox.spec.workdir
        self._turn = asyncio.Lock()
        self._pending: asyncio.Future[Response] | None = None

    async def request(self, text: str, timeout_s: float, output_limit: int) -> Response:
        """Sends one command or cell and waits for its reply."""
        body = text.encode("utf-8", "surrogatepass")
        if b"\0" in body:
            raise ValueError("a command cannot hold a NUL byte")
        wire = self.wire
        async with self._turn:
            if self._pending is not None:  # a cancelled request that is still being killed
                await asyncio.wait([self._pending], timeout=30)
            id = wire.fresh_id()
            self._pending = wire.expect(id)
            fields = {"op": "session_run", "id": id, "session": self.id, "kind": self.kind}
            wire.send({**fields, "timeout": finite(timeout_s), "limit": output_limit}, body)
            try:
                reply = await wire.wait(self._pending, timeout_s)
            except asyncio.CancelledError:
                self.stop("cancel")
                raise
            self._pending = None
            self.folder = reply.fields["cwd"]
            return reply

    def stop(self, reason: str) -> None:
        """Ends the running request, if any."""
        self.wire.send({"op": "stop", "id": "", "job": self.id, "reason": reason})

    def lost_state(self, fields: Mapping[str, str]) -> str:
        """Returns a message if the session did not survive; else empty."""
        whys = {"killed": "had to be killed", "died": f"ended (code {fields['code']})", "": ""}
        why = whys[fields["ended"]]
        return _LOST_STATE[self.kind].format(why=why) if why else ""

    async def restart(self) -> None:
        """Kills it and all processes that it started; the next request starts a fresh one."""
        await self.wire.request("session_reset", {"session": self.id})
        self.folder = self.sandbox.spec.workdir


class ToolboxShell(_Session):
    """Bash in the sandbox."""

    kind = "shell"

    async def run(self, command: str, timeout_s: float = 60.0, output_limit: int = OUTPUT_LIMIT) -> ExecResult:
        """Runs a command."""
        reply = await self.request(command, timeout_s, output_limit)
        answer = reply.fields["reply"]
        told = answer.isdecimal() and len(answer) <= 3  # programs can write to the shell's channel
        code = int(answer) if told and not reply.fields["reason"] else None
        return self.sandbox.result(reply, reply.body, self.lost_state(reply.fields).encode(), code)

    async def cwd(self) -> str:
        """Returns the shell's folder, read from the kernel at the end of the last command, and constant since."""
        return self.folder

    async def interrupt(self) -> None:
        """Ends the running command."""
        self.stop("interrupt")


class ToolboxKernel(_Session):
    """Python kernel in the sandbox."""

    kind = "python"

    async def run(self, code: str, timeout_s: float = 60.0, output_limit: int = OUTPUT_LIMIT) -> CellResult:
        """Runs a cell."""
        reply = await self.request(code, timeout_s, output_limit)
        fields, answer = reply.fields, reply.fields["reply"]
        ended = self.sandbox.outcome(fields, int(fields["code"]) if fields["code"] else 0)
        outcome: Literal["ok", "error", "timeout", "died", "oom", "output_limit"]
        if ended == "oom" or ended == "timeout" or ended == "output_limit":
            outcome = ended
        else:
            outcome = "died" if fields["ended"] else "error" if answer.startswith("e") else "ok"
        return CellResult(
            outcome=outcome,
            output=reply.body.decode("utf-8", "replace"),
            value=answer[1:] if answer.startswith("v") else None,
            traceback=answer[1:] if answer.startswith("e") else None,
            dropped=int(fields["out_dropped"]),
            note=self.lost_state(fields),
            duration_s=float(fields["took"]),
        )
