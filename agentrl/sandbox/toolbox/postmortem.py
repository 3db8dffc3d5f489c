"""Finds the cause of the end of a sandbox: its own programs, or something outside."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from agentrl.sandbox.linux.cgroups import Cgroup
from agentrl.sandbox.toolbox.wire import Wire

_SAMPLE_S = 0.005
"""Reading the count takes 20 us. A kill within this time of the last reading, and before the toolbox ends, counts as
the cause of its end."""
_LOOK_S = 1.0
_LOOKS = 6
"""Maximum of samples of a silent toolbox. On a busy machine it may not run between two of them, and for a moment
after a kill the group has room."""


_MUCH_S, _STARVES = 0.5, 8
"""Programs starve a silent toolbox if they take this processor time, and this multiple of the toolbox's."""

_TICKS = os.sysconf("SC_CLK_TCK")
_SIZE = 20  # the place of the size of virtual memory in `_stat`


class Postmortem:
    """Looks for evidence that the programs of a sandbox ended it, or silenced it.

    The evidence is the kernel's: counts of the sandbox's own control group. A toolbox killed from outside, a container
    that was removed or paused, and a host without memory leave no trace in them.

    Args:
        group: of the sandbox; None if it is not visible.
        pid: of the toolbox, on the host.
        killed_for_memory: asks the engine, which may have removed the group by then.
    """

    def __init__(
        self, group: Cgroup | None, pid: int, killed_for_memory: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self._group, self._pid, self._killed_for_memory = group, pid, killed_for_memory
        self._kills = 0
        self._sampled = 0.0

    def attach(self, wire: Wire) -> None:
        """Registers with a wire, which asks here from now on."""
        wire.heard, wire.postmortem = self._heard, self._look

    def _heard(self) -> None:
        """Records that the toolbox lives: kills until now did not hit it."""
        now = time.monotonic()
        if self._group is not None and now > self._sampled + _SAMPLE_S:
            self._sampled = now
            self._kills = self._group.oom_kills() or 0

    async def _look(self, silent: bool) -> str:
        return await self._why_silent() if silent else await self._why_dead()

    async def _why_dead(self) -> str:
        """Checks whether the kernel killed the toolbox in a full group. (If the whole host was full, it may not be.)"""
        kills = self._group.oom_kills() if self._group is not None else None
        if self._group is not None and kills is not None:
            dead = kills > self._kills and self._group.was_full()
        elif self._kills:
            dead = False  # the engine reports any kill since the start, also those that the toolbox survived
        else:
            dead = self._killed_for_memory is not None and await self._killed_for_memory()
        return "its programs took all its memory, and the kernel killed the toolbox" if dead else ""

    async def _why_silent(self) -> str:
        """The toolbox runs, and waits for what its programs took from it. What is stopped or frozen does nothing."""
        if (held := _held_up_by(self._pid)) is not None:
            await asyncio.sleep(_LOOK_S)
            if _held_up_by(self._pid) == held:
                return "its programs stopped what the toolbox was about to start"
        if self._group is None:
            return ""
        before, kills = _exertion(self._pid), self._group.oom_kills() or 0
        taken, own = self._group.cpu_s(), _waits_since(self._pid, 0.0)
        ran = was_full = False
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_S)
            now, full = _exertion(self._pid), self._group.is_full()
            ran = ran or now > before
            if (now > before and (full or was_full)) or (ran and (self._group.oom_kills() or 0) > kills):
                return "its programs took all its memory, and the toolbox waits for some"
            before, was_full = now, full
        if taken is not None and own is not None and (now_taken := self._group.cpu_s()) is not None:
            left = _waits_since(self._pid, own)
            if left is not None and now_taken - taken >= _MUCH_S and left * _STARVES <= now_taken - taken:
                return "its programs took all its processor time, and the toolbox waits for some"
        return ""


def _held_up_by(pid: int) -> int | None:
    """The stopped child for which a process waits in `vfork`; None: there is none.

    It is no program yet, and has the memory of its parent. Who stops something from outside stops the parent.
    """
    own = _stat(pid)
    if own and own[0] == "D":
        for child in _children(pid):
            if (its := _stat(child)) and its[0] == "T" and its[_SIZE] == own[_SIZE]:
                return child
    return None


def _children(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
    return []


def _waits_since(pid: int, used_s: float) -> float | None:
    """Processor time that a process took since it had taken so much; None if it does not wait for more, as one does
    not that is stopped, frozen or asleep."""
    fields = _stat(pid)
    if not fields or fields[0] != "R":
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS - used_s


def _exertion(pid: int) -> int:
    """Work that a process has done so far: page faults that had to wait, and ticks of processor time; see proc(5)."""
    fields = _stat(pid)
    return int(fields[9]) + int(fields[11]) + int(fields[12]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if there is no such process."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="latin-1") as file:
        return file.read().rpartition(")")[2].split()
    return []
