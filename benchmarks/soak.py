"""Processes, files and memory that sandboxes leave behind: `python -m benchmarks.soak [--backend docker]`.

Sandboxes are created, used and closed over and over; some cycles are cancelled, and some sandboxes are killed from
outside, at random moments. Then nothing may be left of them, the driver's memory must be flat, and no cycle may have
failed that nobody attacked: else the exit code is 1. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.sandbox.pool import Pool
from agentrl.sandbox.registry import open_backend
from agentrl.types.errors import MissingExtra, SandboxError
from agentrl.types.sandbox import Backend, SandboxSpec
from benchmarks.harness import Benchmark, Missing, Report, Row

GROWTH_MIB = 8.0
"""What the driver's memory may grow by between a quarter of the cycles and all of them."""

ORPHAN = f"3600.{os.getpid()}"
"""Every sandbox leaves a detached `sleep` of this length: one that survives is known by it."""


class Verdict(Row):
    """Cycles by their end, remains by kind (with examples), and the driver's memory on the way."""

    backend: str
    cycles: int
    came_to: dict[str, int]
    left: dict[str, int]
    examples: dict[str, list[str]]
    rss_mib: list[float]
    cycles_s: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Verdict,
    kind="measure",
    beside="nothing left, and flat memory",
    smoke={"cycles": 12, "kill": 0.3},
)


@dataclass
class Soak:
    """One run.

    Attributes:
        report: is told of every cycle.
        attack: kills one sandbox, or a part of one, from outside; says whether there was any.
        came_to: how many cycles ended how.
        cycle_s: how long cycles took of late; attacks come at a random moment of such a span.
        unprovoked: failures beyond the number of attacks, or of a kind that no attack explains.
    """

    backend: Backend
    spec: SandboxSpec
    cycles: int
    concurrency: int
    kill: float
    chance: random.Random
    report: Report
    attack: Callable[[random.Random], bool]
    came_to: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    unprovoked: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    cycle_s: float = 0.05

    async def run(self) -> None:
        """All cycles, some at the same time."""
        numbers = iter(range(self.cycles))
        await asyncio.gather(*(self._worker(numbers) for _ in range(self.concurrency)))
        if self.came_to["lost"] > self.came_to["attacked"]:
            self.unprovoked.append(f"{self.came_to['lost']} lost, {self.came_to['attacked']} attacked: {self.losses}")

    async def _worker(self, numbers: Any) -> None:
        for number in numbers:
            started = time.perf_counter()
            cycle = asyncio.create_task(self._cycle(number))
            if self.chance.random() < self.kill:
                await asyncio.sleep(self.chance.uniform(0, 1.2 * self.cycle_s))
                if self.chance.random() < 0.5:
                    cycle.cancel()
                else:
                    hit = await asyncio.to_thread(self.attack, self.chance)
                    self.came_to["attacked"] += hit
            try:
                await cycle
                self.came_to["ok"] += 1
            except asyncio.CancelledError:
                self.came_to["cancelled"] += 1
            except SandboxError as error:
                self.came_to["lost"] += 1
                self.losses.append(f"cycle {number}: {error}")
            except Exception as error:
                self.unprovoked.append(f"cycle {number}: {type(error).__name__}: {error}")
            self.cycle_s += 0.1 * (time.perf_counter() - started - self.cycle_s)
            done = self.came_to["ok"] + self.came_to["cancelled"] + self.came_to["lost"]
            if done in (self.cycles // 4, self.cycles):
                self.rss_mib.append(rss_mib())
            self.report.done("cycles")

    async def _cycle(self, number: int) -> None:
        async with await self.backend.create(self.spec, label=f"cycle {number}") as sandbox:
            await sandbox.spawn(["sleep", ORPHAN])
            shell = await sandbox.session()
            await shell.run(f"setsid sleep {ORPHAN} &")
            result = await sandbox.exec(f"setsid sleep {ORPHAN} & echo {number}")
            if result.outcome != "signal" and result.text != f"{number}\n":
                raise AssertionError(f"{result.outcome}: {result.text!r}")


def rss_mib() -> float:
    """Memory of this process in use, MiB, after what is garbage has gone."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def descendants() -> list[int]:
    """Processes below this one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_bytes().rpartition(b")")[2].split()[1])
    found: list[int] = []
    layer = {os.getpid()}
    while layer := {pid for pid, parent in parents.items() if parent in layer}:
        found += layer
    return sorted(found)


def orphans() -> list[str]:
    """What cycles left detached, and parts of sandboxes, wherever in the tree of processes they are now."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes()
            if f"sleep\0{ORPHAN}\0".encode() in command or f"/agentrl-{os.getpid()}-".encode() in command:
                found.append(f"{path.parent.name} {command[:60]!r}")
    return found


def leftovers(host: str | None) -> dict[str, list[str]]:
    """What of ours is there, by kind. `host`: of the container engine, if there is one."""
    mark = f"agentrl-{os.getpid()}-"
    groups = [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if mark in folder]
    found = {
        "processes": [str(pid) for pid in descendants() if not _is_engine(pid)],
        "orphans": orphans(),
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if mark in line],
        "cgroups": groups,
        "folders": [str(path) for path in Path(tempfile.gettempdir()).glob(f"*{mark}*")],
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors()),
    }
    if host is not None:
        own = f"{os.getpid()}-"
        for kind, listing in (("containers", ["ps", "-a"]), ("networks", ["network", "ls"])):
            form = '{{.Label "agentrl.owner"}} {{.ID}}'
            argv = ["docker", "-H", host, *listing, "--filter", "label=agentrl.owner", "--format", form]
            lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
            found[kind] = [line for line in lines if line.startswith(own)]
    return found


def _descriptors() -> list[int]:
    """Open files but for the one that lists them."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in listed if os.path.lexists(f"/proc/self/fd/{fd}")]


def _is_engine(pid: int) -> bool:
    """Whether a process belongs to the container engine that this run started, or has ended meanwhile."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("dockerd", "containerd", "containerd-shim")
    return True


def attack_processes(chance: random.Random) -> bool:
    """Kills a process below this one."""
    below = descendants()
    if below:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(below), signal.SIGKILL)
            return True
    return False


def attack_containers(host: str) -> Callable[[random.Random], bool]:
    """Kills a container of this process."""

    def attack(chance: random.Random) -> bool:
        own = leftovers(host)["containers"]
        if not own:
            return False
        argv = ["docker", "-H", host, "kill", chance.choice(own).split()[1]]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    return attack


@asynccontextmanager
async def opened(name: str, pool: int, **settings: Any) -> AsyncIterator[Backend]:
    """The backend, behind a pool if one is wanted."""
    backend = open_backend(name, settings)
    if pool:
        backend = Pool(backend, ahead=pool)
    try:
        yield backend
    finally:
        await backend.close()


async def soak(options: argparse.Namespace, host: str | None, report: Report) -> Soak:
    """Runs the cycles; the backend is closed when it returns."""
    settings = {"host": host} if host else {}
    attack = attack_containers(host) if host else attack_processes
    spec = SandboxSpec(image=options.image, memory_mb=64, disk_mb=16)
    async with opened(options.backend, options.pool, **settings) as backend:
        try:
            backend.preflight(spec)  # not under attack: all that come later wait for its probes
        except (SandboxError, MissingExtra) as error:
            raise Missing(str(error)) from None
        if isinstance(backend, Pool):
            backend.prefetch([spec] * options.cycles)
        report.plan(options.cycles)
        chance = random.Random(options.seed)
        run = Soak(backend, spec, options.cycles, options.concurrency, options.kill, chance, report, attack)
        await run.run()
    return run


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--backend", default="namespace")
    parser.add_argument("--image", help="image of the sandboxes")
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--kill", type=float, default=0.05, help="share of the cycles that are attacked")
    parser.add_argument("--pool", type=int, default=0, help="sandboxes made ahead")
    parser.add_argument("--seed", type=int, default=0)
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    """Runs, looks, and tells."""
    with ExitStack() as stack:
        host = docker_host(stack) if given.backend == "docker" else None
        before = leftovers(host)
        started = time.perf_counter()
        run = asyncio.run(soak(given, host, report))
        took = time.perf_counter() - started
        after = leftovers(host)
    left = {kind: sorted((Counter(after[kind]) - Counter(before[kind])).elements()) for kind in after}
    growth = run.rss_mib[-1] - run.rss_mib[0]
    for kind, each in left.items():
        if each:
            report.problem(f"{kind} left")
    for text in run.unprovoked[:10]:
        report.problem(text)
    if growth > GROWTH_MIB:
        report.problem(f"memory grew by {growth:.1f} MiB")
    report.row(
        Verdict(
            backend=given.backend,
            cycles=given.cycles,
            came_to=dict(run.came_to),
            left={kind: len(each) for kind, each in left.items()},
            examples={kind: each[:3] for kind, each in left.items() if each},
            rss_mib=[round(each, 1) for each in run.rss_mib],
            cycles_s=round(given.cycles / took, 2),
        )
    )


def docker_host(stack: ExitStack) -> str:
    """The engine that answers, or a private one for the time of the run."""
    from tests.sandbox import dockerd

    if not dockerd.usable() and (why := dockerd.why_not()):
        raise Missing(why)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-soak-")))
    return stack.enter_context(dockerd.engine(folder))


if __name__ == "__main__":
    sys.exit(main())
