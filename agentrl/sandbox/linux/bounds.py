"""The bounds of a sandbox: those of its spec, and defaults for what that leaves open, the same on every backend."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.types.sandbox import SandboxSpec

MEMORY_MB, PIDS, DISK_MB = 1024, 256, 256


@dataclass(frozen=True)
class Bounds:
    """What a sandbox may take.

    Attributes:
        disk_mb: size of each writable folder. By default at most a quarter of the memory: there are three, what they
            hold is memory, and with all three full there is still room for programs.
    """

    memory_mb: int
    pids: int
    disk_mb: int

    @classmethod
    def of(cls, spec: SandboxSpec) -> Bounds:
        """The bounds of a spec."""
        memory = spec.memory_mb or MEMORY_MB
        return cls(memory, spec.pids or PIDS, spec.disk_mb or min(DISK_MB, memory // 4))

    @property
    def archive_mb(self) -> int:
        """Size of its packed files at most."""
        return max(self.memory_mb, self.disk_mb)
