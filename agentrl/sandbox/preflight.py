"""What every backend's `preflight` has in common: refusing, and what this machine cannot give to anybody."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

from agentrl.types.sandbox import CapabilityMissing, SandboxSpec, SandboxUnavailable

Want = tuple[bool, str, str, str]
"""Whether a spec wants what there is not; the field; what the backend does instead; the remedy."""

_CORES = os.cpu_count() or 1
_MEMORY_MB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def refuse(backend: str, spec: SandboxSpec, wants: Iterable[Want]) -> None:
    """Refuses the first thing wanted that cannot be had.

    That includes bounds beyond the machine, which bound nothing: its memory would end before the sandbox's does.

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
    """The error where a backend's own files cannot be written to the temp folder."""
    folder = tempfile.gettempdir()
    problem = f"the {backend} backend cannot write its files to {folder}: {why}"
    return SandboxUnavailable(problem, place=folder, remedy="free some space there, or set TMPDIR to another folder")
