"""Resource limits of a sandbox: those of its spec, and the same defaults on every backend."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.types.sandbox import SandboxSpec

MEMORY_MB, PIDS, DISK_MB = 1024, 256, 256


@dataclass(frozen=True)
class ProcessBounds:
    """Resource limits of a sandbox.

    Attributes:
        disk_mb: size of each writable folder. By default at most a quarter of the memory: three folders in memory, all
            full, must leave room for programs.
    """

    memory_mb: int
    pids: int
    disk_mb: int

    @classmethod
    def of(cls, spec: SandboxSpec) -> ProcessBounds:
        """Returns the limits of a spec."""
        memory = spec.memory_mb or MEMORY_MB
        return cls(memory, spec.pids or PIDS, spec.disk_mb or min(DISK_MB, memory // 4))

    @property
    def archive_mb(self) -> int:
        """Maximum size of its packed files."""
        return max(self.memory_mb, self.disk_mb)
