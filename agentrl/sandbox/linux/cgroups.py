"""Limits by control group, version 1 or 2, if this process may create groups below its own.

A family is a folder per hierarchy, named after its owner process; it holds one group per sandbox. Leftovers of a
killed owner are removed by the next one.
"""

from __future__ import annotations

import os
import signal
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.sandbox.owner import is_alive

_ROOT = "/sys/fs/cgroup"
_PREFIX = "agentrl-"
_PERIOD_US = 100_000
_MIB = 1 << 20


@dataclass(frozen=True)
class CgroupLimits:
    """Limits of a group. `cpu` in cores, None: unlimited."""

    memory_mb: int
    pids: int
    cpu: float | None


_FILES = {
    1: ("memory.oom_control", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes"),
    2: ("memory.events", "memory.current", "memory.peak", "memory.max"),
}
"""By version, files of: a line `oom_kill N`; bytes in use; their peak; their limit."""

_TCP_LIMIT = "memory.kmem.tcp.limit_in_bytes"
_FULL = 0.95


@dataclass(frozen=True)
class Cgroup:
    """Control group of one sandbox.

    Attributes:
        folders: one per hierarchy in use (version 2: one).
        memory: folder that counts memory.
        version: of that hierarchy.
        cpu: folder that counts processor time; empty if none does.
    """

    folders: tuple[str, ...]
    memory: str
    version: Literal[1, 2]
    cpu: str = ""

    def add(self, pid: int) -> None:
        """Moves a process into the group; its future children start in the group."""
        for folder in self.folders:
            _put(f"{folder}/cgroup.procs", str(pid))

    def oom_kills(self) -> int | None:
        """Returns the number of its processes that the kernel killed for memory; None once the group is gone."""
        for line in self._read(0).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return None

    def memory_mb(self) -> float:
        """Returns the memory in use, MiB."""
        return int(self._read(1) or 0) / _MIB

    def cpu_s(self) -> float | None:
        """Returns the processor time of all its processes, past ones included; None if it is not counted."""
        if self.version == 1:
            used = _get(f"{self.cpu}/cpuacct.usage").strip() if self.cpu else ""
            return int(used) / 1e9 if used else None
        for line in _get(f"{self.memory}/cpu.stat").splitlines():
            if line.startswith("usage_usec "):
                return int(line.split()[1]) / 1e6
        return None

    def limit_tcp(self, memory_mb: int) -> None:
        """Limits buffers of TCP sockets to an eighth of the memory: version 1 counts them separately."""
        if self.version == 1:
            with suppress(OSError):  # not ours to limit, or not counted by this kernel
                _put(f"{self.memory}/{_TCP_LIMIT}", str(max(memory_mb // 8, 4) * _MIB))

    def is_full(self) -> bool:
        """Returns True if nearly all memory of its limit is in use."""
        return self._near_limit(self._read(1))

    def was_full(self) -> bool:
        """Returns True if it ever was full, or if the kernel does not record that (version 2 before Linux 5.19)."""
        return self._near_limit(self._read(2) or self._read(3))

    def _near_limit(self, used: str) -> bool:
        limit = self._read(3).strip()
        return limit.isdecimal() and int(used) >= _FULL * int(limit)

    def _read(self, which: int) -> str:
        return _get(f"{self.memory}/{_FILES[self.version][which]}")

    def remove(self) -> bool:
        """Removes the group; True if it is gone, False while it holds a process or the kernel is not done."""
        for folder in self.folders:
            with suppress(OSError):
                os.rmdir(folder)
        return not any(map(os.path.exists, self.folders))

    def kill(self) -> None:
        """Kills its remaining processes."""
        for pid in _get(f"{self.folders[0]}/cgroup.procs").split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def can_limit_tcp(folder: str = f"{_ROOT}/memory") -> bool:
    """Returns True if this process can limit TCP of groups below that one, of version 1."""
    return os.access(f"{folder}/{_TCP_LIMIT}", os.W_OK)


class CgroupFamily:
    """Control groups of one backend.

    Attributes:
        means: `cgroup v1` or `cgroup v2`, for reports.
        cpu: whether processor time can be limited, too.
        tcp: whether memory of TCP sockets can be limited.
    """

    def __init__(self, means: str, bases: dict[str, str]) -> None:
        self.means = means
        self.cpu = "cpu" in bases
        self.tcp = means == "cgroup v2" or can_limit_tcp(bases["memory"])
        self._bases = bases
        self._made = 0
        self.close = weakref.finalize(self, _remove, sorted(set(bases.values())))
        """Removes the family, whose groups must be gone; also runs at exit."""

    def create(self, limits: CgroupLimits) -> Cgroup:
        """Creates an empty group. Raises OSError."""
        self._made += 1
        folders = {controller: f"{base}/{self._made}" for controller, base in self._bases.items()}
        if limits.cpu is None and folders.get("cpu") != folders.get("cpuacct"):
            folders.pop("cpu", None)
        unique = tuple(dict.fromkeys(folders.values()))
        for folder in unique:
            os.mkdir(folder)
        quota = int((limits.cpu or 0) * _PERIOD_US)
        if self.means == "cgroup v2":
            folder = folders["memory"]
            _put(f"{folder}/memory.max", str(limits.memory_mb * _MIB))
            with suppress(OSError):  # absent without swap
                _put(f"{folder}/memory.swap.max", "0")
            _put(f"{folder}/pids.max", str(limits.pids))
            if limits.cpu is not None:
                _put(f"{folder}/cpu.max", f"{quota} {_PERIOD_US}")
            return Cgroup(unique, folder, 2)
        memory = folders["memory"]
        _put(f"{memory}/memory.limit_in_bytes", str(limits.memory_mb * _MIB))
        with suppress(OSError):  # absent where swap is not counted
            _put(f"{memory}/memory.memsw.limit_in_bytes", str(limits.memory_mb * _MIB))
        _put(f"{folders['pids']}/pids.max", str(limits.pids))
        if limits.cpu is not None:
            _put(f"{folders['cpu']}/cpu.cfs_quota_us", str(quota))
        group = Cgroup(unique, memory, 1, folders.get("cpuacct", ""))
        group.limit_tcp(limits.memory_mb)
        return group


def found_family(label: str, root: str = _ROOT) -> CgroupFamily | None:
    """Creates a family for this process; None if groups cannot be made. Leftovers of dead owners are removed first.

    Args:
        label: identifies this owner on the machine, see `owner.new_label`.
        root: mount point of the hierarchies.
    """
    reap_groups(root=root)
    return _version_2(label, root) or _version_1(label, root)


def reap_groups(*, dry: bool = False, root: str = _ROOT) -> list[str]:
    """Removes the groups of dead owners, and the processes in them.

    Returns:
        Removed objects; with `dry`, those that would be.
    """
    found = []
    for parent in dict.fromkeys((*_parents_2(root), *_parents_1(root).values())):
        for family in sorted(Path(parent).glob(f"{_PREFIX}*")):
            if is_alive(family.name.removeprefix(_PREFIX)):
                continue
            inner: list[Path] = []
            with suppress(FileNotFoundError):  # another driver reaps it
                inner = [entry for entry in family.iterdir() if entry.is_dir()]
            for folder in (*inner, family):
                found += [f"process {pid}" for pid in _get(f"{folder}/cgroup.procs").split()]
                found.append(f"control group {folder}")
                if not dry:
                    _clear(str(folder))
    return found


def _parents_2(root: str) -> list[str]:
    own = next((path for _, names, path in _own_groups() if not names), "/")
    return list(dict.fromkeys((f"{root}{own.rstrip('/')}", root)))


def _parents_1(root: str) -> dict[str, str]:
    own = {name: path for _, names, path in _own_groups() for name in names}
    nested = {each: f"{root}/{each}{own.get(each, '/').rstrip('/')}" for each in ("memory", "pids", "cpu", "cpuacct")}
    there = {each: path if os.path.isdir(path) else f"{root}/{each}" for each, path in nested.items()}
    return {each: os.path.realpath(path) for each, path in there.items()}  # cpu and cpuacct are often one


def _version_2(label: str, root: str) -> CgroupFamily | None:
    for parent in _parents_2(root):
        there = set(_get(f"{parent}/cgroup.controllers").split())
        if not {"memory", "pids"} <= there:
            continue
        controllers = ("memory", "pids", *(("cpu",) if "cpu" in there else ()))
        enable = " ".join(f"+{each}" for each in controllers)
        base = f"{parent}/{_PREFIX}{label}"
        try:
            _put(f"{parent}/cgroup.subtree_control", enable)
            os.mkdir(base)
            _put(f"{base}/cgroup.subtree_control", enable)
        except OSError:  # not ours, or it holds processes and so cannot have limited children
            with suppress(OSError):
                os.rmdir(base)
            continue
        return CgroupFamily("cgroup v2", dict.fromkeys(controllers, base))
    return None


def _version_1(label: str, root: str) -> CgroupFamily | None:
    bases: dict[str, str] = {}
    for controller, parent in _parents_1(root).items():
        base = f"{parent}/{_PREFIX}{label}"
        with suppress(OSError):
            if base not in bases.values():
                os.mkdir(base)
            bases[controller] = base
    if {"memory", "pids"} <= set(bases):
        return CgroupFamily("cgroup v1", bases)
    _remove(list(bases.values()))
    return None


def _remove(folders: list[str]) -> None:
    for folder in folders:
        with suppress(OSError):
            os.rmdir(folder)


def _clear(folder: str) -> None:
    """Kills the processes of a group and removes it."""
    for _ in range(100):
        for pid in _get(f"{folder}/cgroup.procs").split():
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:  # they are still dying
            time.sleep(0.01)
        else:
            return


def _own_groups() -> list[tuple[str, list[str], str]]:
    """Returns (hierarchy, controllers, path) of this process; controllers are empty for version 2."""
    rows = (line.split(":", 2) for line in _get("/proc/self/cgroup").splitlines())
    return [(number, names.split(",") if names else [], path) for number, names, path in rows]


def _put(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _get(path: str) -> str:
    """Returns a file's content; empty if it does not exist."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # quicker than `open`: this is read after every command
        try:
            return os.read(fd, 1 << 16).decode()
        finally:
            os.close(fd)
    return ""
