"""Programs that run to their end: bytes, deadlines, and trees that die whole."""

from __future__ import annotations

from agentrl.sandbox.conformance.arena import Arena, expect
from agentrl.sandbox.conformance.check import check


@check()
async def stdin_eof(arena: Arena) -> None:
    """A program that reads stdin and is given none meets its end at once."""
    sandbox = await arena.open()
    result = await sandbox.exec(["cat"], timeout_s=10)
    expect(result.outcome == "ok" and result.stdout == b"", f"cat ended with {result.outcome}")
