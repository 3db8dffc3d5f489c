"""A sandbox backend that is not there for a while: a daemon that restarts, a disk that is full for a moment."""

from __future__ import annotations

import asyncio
import time

from agentrl.types.sandbox import Backend, Sandbox, SandboxSpec, SandboxStartFailed, SandboxUnavailable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0


class Outage:
    """Gets sandboxes for the episodes of one rollout context, which all wait for one backend.

    While it is unavailable it is asked again and again; an outage is as long for an episode that comes late as for the
    one that met it first, so that a backend which stays away costs the patience once and not once an episode.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether the backend was unavailable when it was last asked."""
        return self._since is not None

    async def create(self, backend: Backend, spec: SandboxSpec, label: str, patience_s: float) -> Sandbox:
        """A fresh sandbox.

        Args:
            patience_s: how long one may take to start, and how long an outage may last.

        Raises:
            SandboxStartFailed: it did not start, or not in time.
            SandboxUnavailable: the outage lasts too long.
        """
        asked, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    sandbox = await backend.create(spec, label=label)
            except TimeoutError:
                raise SandboxStartFailed(f"no sandbox within {patience_s:g} s") from None
            except SandboxUnavailable:
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
