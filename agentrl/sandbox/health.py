"""Health check after a deadline: a sandbox that does not answer is an infrastructure failure, not the agent's."""

from __future__ import annotations

from agentrl.types.sandbox import Sandbox, SandboxLost


async def check_answers(sandbox: Sandbox | None) -> None:
    """Checks after a passed deadline that the sandbox answers. If it does not, the agent did not cause the delay.

    Raises:
        SandboxLost: the sandbox is gone or does not answer.
    """
    if sandbox is not None and not (health := await sandbox.health()).alive:
        raise health.loss or SandboxLost("the sandbox is gone: it does not answer", place=sandbox.label)
