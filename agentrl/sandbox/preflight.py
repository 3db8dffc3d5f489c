"""Common part of every backend's `preflight`: refusals, and limits of this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

from agentrl.types.sandbox import CapabilityMissing, SandboxSpec, SandboxUnavailable

Want = tuple[bool, str, str, str]
"""A test whether a spec asks for something unavailable; the field; the backend's behaviour; the remedy."""

_CORES = os.cpu_count() or 1
_MEMORY_MB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def refuse(backend: str, spec: SandboxSpec, wants: Iterable[Want]) -> None:
    """Refuses the first wish that the backend cannot fulfil.

    That includes limits beyond the machine, which are no limits: its memory would end before the sandbox's does.

    Raises:
        CapabilityMissing: names the field and the remedy.
    """
    beyond = (
        (
            spec.cpu is not None and spec.cpu > _CORES,
            "cpu",
            f"has {_CORES} cores on this machine, not {spec.cpu}",
            f"set cpu to {_CORES} or less",
        ),
        (
            spec.memory_mb is not None and spec.memory_mb > _MEMORY_MB,
            "memory_mb",
            f"has {_MEMORY_MB} MiB on this machine, not {spec.memory_mb}",
            f"set memory_mb to {_MEMORY_MB} or less",
        ),
    )
    for wanted, key, problem, remedy in (*wants, *beyond):
        if wanted:
            raise CapabilityMissing(f"the {backend} backend {problem}", place=f"sandbox.spec.{key}", remedy=remedy)


def no_room(backend: str, why: str | None) -> SandboxUnavailable:
    """Returns the error for a backend whose files cannot be written to the temp folder."""
    folder = tempfile.gettempdir()
    problem = f"the {backend} backend cannot write its files to {folder}: {why}"
    return SandboxUnavailable(problem, place=folder, remedy="free some space there, or set TMPDIR to another folder")
