"""Temporary outages of a sandbox backend, for example a restarting daemon or a full disk."""

from __future__ import annotations

import asyncio
import time

from agentrl.types.clocks.deadline import Deadline
from agentrl.types.sandbox import Backend, Sandbox, SandboxSpec, SandboxStartFailed, SandboxUnavailable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0


class Outage:
    """Creates sandboxes for the episodes of one rollout context, and waits while the backend is unavailable.

    Creation is retried with back-off. The timeout counts from the start of the outage, for all episodes: a permanent
    outage costs the timeout once, not once per episode.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def lasts(self) -> bool:
        """True if the backend was unavailable at the last attempt."""
        return self._since is not None

    async def create(self, backend: Backend, spec: SandboxSpec, label: str, patience_s: float) -> Sandbox:
        """Creates a sandbox.

        Args:
            patience_s: timeout in seconds of a sandbox's start, and of an outage.

        Raises:
            SandboxStartFailed: the sandbox did not start in time.
            SandboxUnavailable: the outage lasts longer than the timeout, or waiting does not help.
        """
        asked, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                async with Deadline(patience_s):
                    sandbox = await backend.create(spec, label=label)
            except TimeoutError:
                raise SandboxStartFailed(f"no sandbox within {patience_s:g} s") from None
            except SandboxUnavailable as error:
                if not error.retried:
                    raise
                now = time.monotonic()
                if self._since is None:
                    self._since = now
                left = patience_s - (now - min(self._since, asked))
                if left <= 0:
                    raise
            else:
                self._since = None
                return sandbox
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)
