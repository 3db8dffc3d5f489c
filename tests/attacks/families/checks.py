"""The conformance checks that attack a sandbox (`agentrl sandbox check`), among the other attacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl.sandbox.conformance import Arena, checks, run_check
from agentrl.sandbox.registry import open_backend
from agentrl.types.sandbox import Backend, SandboxSpec
from tests.attacks.cases import SANDBOXES, Broken, Case, Family

_ROOMS = ("files", "limits", "sabotage", "isolation", "network")


class Checks(Family):
    """One check at a time."""

    name = "checks"
    places = SANDBOXES
    batch = 2
    draws = False

    def listed(self) -> Sequence[str]:
        return [name for name, check in checks().items() if check.run.__module__.rpartition(".")[2] in _ROOMS]

    def play(self, cases: Sequence[Case], folder: Path) -> Iterator[Broken]:
        """Runs them."""
        backend = open_backend(cases[0].place)
        backend.preflight(SandboxSpec())
        yield from asyncio.run(_run(cases, backend))


async def _run(cases: Sequence[Case], backend: Backend) -> list[Broken]:
    found = []
    try:
        for case in cases:
            result = await run_check(checks()[case.name], Arena(backend, case.place))
            if result.status == "fail":
                found.append(Broken((case.id,), result.detail))
    finally:
        await backend.close()
    return found
