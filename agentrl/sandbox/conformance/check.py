"""Registers and runs checks."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from agentrl.sandbox.conformance.arena import Arena
from agentrl.types.sandbox import Capabilities

_ROOMS = ("programs", "files", "limits", "sabotage", "isolation", "network", "sessions", "life")
_DEADLINE_S = 600.0

Unclaimed = Callable[[Capabilities], str]
"""Returns the reason why a backend with these capabilities need not pass a check; empty if it must."""


@dataclass(frozen=True)
class Check:
    """One requirement of backends.

    Attributes:
        name: the function's, with dashes.
        proves: the first line of the function's docstring.
        unclaimed: see `Unclaimed`.
    """

    name: str
    proves: str
    run: Callable[[Arena], Awaitable[None]]
    unclaimed: Unclaimed


@dataclass(frozen=True)
class CheckResult:
    """Result of a check. `detail` describes the failure, or why the check is not claimed."""

    name: str
    proves: str
    status: Literal["pass", "fail", "not claimed"]
    detail: str = ""
    duration_s: float = 0.0


_known: dict[str, Check] = {}


def check(
    unclaimed: Unclaimed = lambda _: "",
) -> Callable[[Callable[[Arena], Awaitable[None]]], Callable[[Arena], Awaitable[None]]]:
    """Makes a check of an async function; its docstring's first line states what it proves."""

    def register(run: Callable[[Arena], Awaitable[None]]) -> Callable[[Arena], Awaitable[None]]:
        name = run.__name__.replace("_", "-")
        _known[name] = Check(name, (run.__doc__ or "").partition("\n")[0], run, unclaimed)
        return run

    return register


def checks() -> dict[str, Check]:
    """Returns all checks by name, in the order in which they run."""
    for room in _ROOMS:
        importlib.import_module(f"agentrl.sandbox.conformance.{room}")
    return _known


async def run_check(check: Check, arena: Arena) -> CheckResult:
    """Runs one check and cleans up after it. Every exception of the check is a finding, not an error."""
    if why := check.unclaimed(arena.backend.capabilities):
        return CheckResult(check.name, check.proves, "not claimed", why)
    begun = time.monotonic()
    detail = ""
    try:
        async with asyncio.timeout(_DEADLINE_S):
            try:
                await check.run(arena)
            finally:
                await arena.clean()
    except TimeoutError:
        detail = f"not over after {_DEADLINE_S:g} s"
    except Exception as error:  # any fault of a backend is a finding
        detail = str(error) if type(error).__name__ == "Broken" else f"{type(error).__name__}: {error}"
    took = time.monotonic() - begun
    return CheckResult(check.name, check.proves, "fail" if detail else "pass", detail, took)
