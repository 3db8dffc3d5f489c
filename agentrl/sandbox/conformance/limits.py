"""Checks of programs that take all resources: they end with the right outcome and harm no others."""

from __future__ import annotations

import asyncio
import subprocess

from agentrl.sandbox.conformance.arena import Arena, expect
from agentrl.sandbox.conformance.check import check
from agentrl.types.sandbox import Capabilities, Sandbox, SandboxLost

_HUNGRY = "import sys\nb = []\nwhile True: b.append(bytearray(b'x' * (1 << 20)))"
_FORK_BOMB = "bomb() { bomb | bomb & bomb; }; bomb 2>/dev/null; while :; do sleep 1; done"


def no_memory_limit(known: Capabilities) -> str:
    """Returns the reason why a check of the memory of a whole sandbox is not claimed."""
    weak = known.memory in ("none", "rlimit")
    return f"the memory of a sandbox is not limited here ({known.memory})" if weak else ""


def _no_pids_limit(known: Capabilities) -> str:
    return "processes are not limited here" if known.pids == "none" else ""


def _no_disk_limit(known: Capabilities) -> str:
    return "the size of folders is not limited here" if known.disk == "none" else ""


def _no_cpu_limit(known: Capabilities) -> str:
    return "processor time is not limited here" if known.cpu == "none" else ""


async def _well(sandbox: Sandbox, who: str) -> None:
    """Checks that the sandbox and the host still work."""
    result = await sandbox.exec("echo well > file && cat file && rm file", timeout_s=300)
    expect(result.stdout == b"well\n", f"{who} is not well: {result.outcome}, {result.text[-200:]}")
    expect(subprocess.run(["true"], timeout=30, check=False).returncode == 0, "the host cannot start programs")


@check(_no_pids_limit)
async def fork_bomb(arena: Arena) -> None:
    """A fork bomb ends with its command; the sandbox, its sessions, its neighbours and the host survive."""
    sandbox, neighbour = await arena.open_many(2, pids=64)
    session = await sandbox.session()
    await session.run("x=5")
    bomb = asyncio.create_task(sandbox.exec(_FORK_BOMB, timeout_s=1.5))
    await asyncio.sleep(0.5)
    await _well(neighbour, "a neighbour during the bomb")
    result = await bomb
    expect(result.outcome in ("timeout", "signal", "nonzero"), f"the bomb ended with {result.outcome}")
    health = await sandbox.health()
    expect(health.alive, "the sandbox died of the bomb")
    expect((await session.run("echo $x")).stdout == b"5\n", "a session of the sandbox died of the bomb")
    await _well(sandbox, "the sandbox after the bomb")


@check(no_memory_limit)
async def memory_bomb(arena: Arena) -> None:
    """A program that takes all memory ends with `oom`, also in a shell and a kernel; the rest survives."""
    sandbox, neighbour = await arena.open_many(2, memory_mb=128)
    result = await sandbox.exec(["python3", "-c", _HUNGRY], timeout_s=300)
    expect(result.outcome == "oom", f"the program ended with {result.outcome}, code {result.code}")
    shell = await sandbox.session()
    await shell.run("x=5")
    told = await shell.run(f"python3 -c '{_HUNGRY.replace(chr(39), chr(34))}'", timeout_s=300)
    expect(told.outcome == "oom", f"in a shell it ended with {told.outcome}, code {told.code}")
    expect((await shell.run("echo $x")).stdout == b"5\n", "the shell died of its command's hunger")
    kernel = await sandbox.python()
    cell = await kernel.run(_HUNGRY, timeout_s=300)
    expect(cell.outcome == "oom" and cell.note, f"in a kernel it ended with {cell.outcome}, note {cell.note!r}")
    expect((await kernel.run("1 + 1")).value == "2", "the next kernel does not work")
    await _well(neighbour, "a neighbour")


@check(no_memory_limit)
async def oom_is_no_other_end(arena: Arena) -> None:
    """After an `oom`, a death by SIGKILL is `signal`, a deadline is `timeout`, a code of 137 is `nonzero`."""
    sandbox = await arena.open(memory_mb=128)
    expect((await sandbox.exec(["python3", "-c", _HUNGRY], timeout_s=300)).outcome == "oom", "no oom to start with")
    for command, outcome in (("kill -9 $$", "signal"), ("sleep 60", "timeout"), ("exit 137", "nonzero")):
        result = await sandbox.exec(command, timeout_s=0.5 if outcome == "timeout" else 300)
        expect(result.outcome == outcome, f"{command}: {result.outcome} rather than {outcome}")


@check(_no_disk_limit)
async def disk_fill(arena: Arena) -> None:
    """A full folder is an error of the program that fills it; deleting files frees space again."""
    sandbox, neighbour = await arena.open_many(2, disk_mb=16)
    for folder in (sandbox.spec.workdir, "/tmp"):
        result = await sandbox.exec(f"head -c 64M /dev/zero > {folder}/big", timeout_s=300)
        expect(result.outcome == "nonzero" and b"space" in result.stderr, f"{folder}: {result.outcome}, {result.text}")
        try:
            await sandbox.write(f"{folder}/more", bytes(1 << 20))
        except OSError:
            await _well(neighbour, "a neighbour")
            await sandbox.exec(f"rm -f {folder}/big {folder}/more")
        else:
            expect(False, f"{folder} can be written beyond its size")
    await _well(sandbox, "the sandbox after it was full")


@check(no_memory_limit)
async def inode_fill(arena: Arena) -> None:
    """Unlimited creation of files ends with `oom` or an error, or the loss of the sandbox; neighbours and host still
    work.
    """
    sandbox, neighbour = await arena.open_many(2, memory_mb=64)
    fill = "i = 0\nwhile True:\n    open(f'{i}', 'w').close(); i += 1"
    try:
        result = await sandbox.exec(["python3", "-c", fill], timeout_s=300)
        expect(result.outcome in ("oom", "nonzero", "signal"), f"it ended with {result.outcome}")
    except SandboxLost:
        pass
    await _well(neighbour, "a neighbour")
    await _well(await arena.open(), "a later sandbox")


@check(_no_cpu_limit)
async def cpu_limit(arena: Arena) -> None:
    """A sandbox limited to a fifth of a core uses no more, however busy it is."""
    sandbox = await arena.open(cpu=0.2)
    burn = "import time; e = time.monotonic() + 2\nwhile time.monotonic() < e: pass\nprint(time.process_time())"
    used = float((await sandbox.exec(["python3", "-c", burn], timeout_s=300)).text)
    expect(used < 1.0, f"it used {used:.2f} s of 2 s")
