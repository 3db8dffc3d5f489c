"""Checks of programs that attack the toolbox: it survives, or the sandbox is reported as broken by them."""

from __future__ import annotations

import asyncio

from agentrl.sandbox.conformance.arena import Arena, expect
from agentrl.sandbox.conformance.check import check
from agentrl.sandbox.conformance.limits import no_memory_limit
from agentrl.types.sandbox import Capabilities, Sandbox, SandboxBroken


def _no_filter(known: Capabilities) -> str:
    return "system calls are not filtered here" if known.syscalls == "none" else ""


async def _works(sandbox: Sandbox, after: str) -> None:
    """Checks all functions of the toolbox."""
    await sandbox.write("word", "well")
    expect(await sandbox.read("word") == b"well", f"files do not work after {after}")
    result = await sandbox.exec("cat word")
    expect(result.stdout == b"well", f"programs do not work after {after}: {result.outcome} {result.text[-200:]}")
    shell = await (await sandbox.session(after)).run("cat word")
    expect(shell.stdout == b"well", f"shells do not work after {after}: {shell.outcome} {shell.text[-200:]}")
    cell = await (await sandbox.python(after)).run("open('word').read()")
    expect(cell.value == "'well'", f"kernels do not work after {after}: {cell.text[-200:]}")
    expect((await sandbox.health()).alive, f"it is not alive after {after}")


_ON_PID_1 = """
import ctypes, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
done = []
def attempt(name, call, *arguments):
    try:
        call(*arguments)
        done.append(name)
    except OSError:
        pass
for name in ("AS", "DATA", "NOFILE", "FSIZE", "NPROC", "STACK", "CPU"):
    attempt("prlimit " + name, resource.prlimit, 1, getattr(resource, "RLIMIT_" + name), (0, 0))
attempt("sched_setscheduler", os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
attempt("sched_setparam", os.sched_setparam, 1, os.sched_param(0))
attempt("sched_setaffinity", os.sched_setaffinity, 1, {min(os.sched_getaffinity(0))})
for name, which, who in (("process", 0, 1), ("group", 1, 1), ("own group", 1, 0), ("user", 2, 0)):
    attempt("setpriority " + name, os.setpriority, which, who, 5)
attempt("setpgid", os.setpgid, 0, 1)
def ioprio(which, who):
    if libc.syscall(30 if os.uname().machine == "aarch64" else 251, which, who, 3 << 13) < 0:
        raise OSError
attempt("ioprio_set process", ioprio, 1, 1)
attempt("ioprio_set user", ioprio, 3, os.getuid())
def put(name):
    with open("/proc/1/" + name, "w") as file:
        file.write("19")
for name in ("oom_score_adj", "autogroup", "timerslack_ns", "comm", "coredump_filter"):
    attempt(name, put, name)
print(", ".join(done))
"""

_ON_ITSELF = """
import os, resource
os.nice(1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
"""


@check(_no_filter)
async def toolbox_out_of_reach(arena: Arena) -> None:
    """No program can change limits, priority, processors or memory rank of the toolbox, or of all processes of its
    user.
    """
    sandbox = await arena.open()
    result = await sandbox.exec(["python3", "-c", _ON_PID_1], timeout_s=20)
    expect(result.ok, f"the probe failed: {result.text[-300:]}")
    expect(result.stdout == b"\n", f"allowed: {result.text.strip()}")
    expect((await sandbox.exec(["python3", "-c", _ON_ITSELF])).ok, "a program cannot change what is its own")
    await _works(sandbox, "attacks on it")


_SPIN = """
import os
try:
    open("/proc/self/autogroup", "w").write("19")
except OSError:
    pass
for _ in range(40):
    if os.fork() == 0:
        os.setsid()
        while True:
            pass
"""


@check()
async def timeouts_are_kept_among_spinners(arena: Arena) -> None:
    """Forty busy programs do not stop the toolbox from ending them, before it counts as lost."""
    sandbox = await arena.open(pids=64)
    result = await sandbox.exec(["python3", "-c", _SPIN + "\nwhile True:\n    pass"], timeout_s=2)
    expect(result.outcome == "timeout", f"it ended with {result.outcome}")
    expect((await sandbox.health()).processes == 1, "some of them run on")


_RANK = "cat /proc/1/oom_score_adj; sleep 0.2; cat /proc/self/oom_score_adj; (cat /proc/self/oom_score_adj)"


@check()
async def programs_go_first(arena: Arena) -> None:
    """Out of memory, the kernel kills every program, its children too, before it kills the toolbox."""
    sandbox = await arena.open()
    told = [(await sandbox.exec(_RANK)).text for _ in range(10)]
    told.append((await (await sandbox.session()).run(_RANK)).text)
    told.append((await (await sandbox.python()).run(f"import os; os.system({_RANK!r}); None")).output)
    process = await sandbox.spawn(_RANK)
    said = b""
    while part := await process.read():
        said += part
    for text in (*told, said.decode()):
        ranks = [int(line) for line in text.split()]
        expect(len(ranks) == 3 and min(ranks[1:]) > ranks[0] + 400, f"ranks (the toolbox's first): {ranks}")


_CHILDREN = """
import os, time
for _ in range(400):
    try:
        if os.fork() == 0:
            held = bytearray(b"x" * (2 << 20))
            time.sleep(60)
    except OSError:
        time.sleep(0.005)
"""
_UNIX_SOCKETS = """
import socket
held = []
while True:
    pair = socket.socketpair()
    held.append(pair)
    pair[0].setblocking(False)
    try:
        while True:
            pair[0].send(b"x" * 65536)
    except BlockingIOError:
        pass
"""
_PIPES = """
import fcntl, os
held = []
while True:
    ends = os.pipe()
    held.append(ends)
    os.set_blocking(ends[1], False)
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(ends[1], b"x" * (1 << 20))
"""


@check(no_memory_limit)
async def hidden_memory(arena: Arena) -> None:
    """Memory taken by many small children, by sockets or by pipes kills the programs, not the toolbox."""
    sandbox, neighbour = await arena.open_many(2, memory_mb=96, pids=200)
    for name, code in (("children", _CHILDREN), ("unix sockets", _UNIX_SOCKETS), ("pipes", _PIPES)):
        await sandbox.exec(["python3", "-c", code], timeout_s=10)
        await _works(sandbox, name)
    await _works(neighbour, "all of that beside it")


_TCP = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0), backlog=64)
held, total = [], 0
for _ in range(300):
    one = socket.create_connection(server.getsockname(), timeout=1)
    other = server.accept()[0]
    for end in (one, other):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    one.setblocking(False)
    held.append((one, other))
    try:
        while True:
            total += one.send(b"x" * 65536)
    except BlockingIOError:
        pass
    print(total >> 20, flush=True)
"""


@check(lambda known: "the memory of TCP sockets is not limited here" if known.sockets == "none" else "")
async def tcp_memory(arena: Arena) -> None:
    """Data in buffers of TCP sockets is limited, too: to at most twice the sandbox's memory."""
    sandbox = await arena.open(memory_mb=64)
    result = await sandbox.exec(["python3", "-c", _TCP], timeout_s=8)
    most = max([0, *map(int, result.stdout.split())])
    expect(most > 0 or result.outcome == "oom", f"no TCP on the own loopback: {result.text[-200:]}")
    expect(most <= 128, f"{most} MiB of 64 were held")
    await _works(sandbox, "that")


_LEAVE_NOTHING = """
import ctypes
open("/proc/self/oom_score_adj", "w").write("0")
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
while (segment := libc.shmget(0, 1 << 20, 0o1666)) >= 0:
    ctypes.memset(libc.shmat(segment, None, 0), 1, 1 << 20)
"""


@check(no_memory_limit)
async def broken_by_its_own_programs(arena: Arena) -> None:
    """A sandbox that dies because its programs took all memory is reported as broken by them; neighbours still work."""
    sandbox, neighbour = await arena.open_many(2, memory_mb=64)
    try:
        for _ in range(3):
            children = f"for i in $(seq 60); do python3 -c '{_LEAVE_NOTHING}' & done; wait"
            await sandbox.exec(children, timeout_s=10)
            await sandbox.exec(["python3", "-c", "pass"], timeout_s=10)
    except (SandboxBroken, OSError):
        pass
    await _works(neighbour, "the death of another")
    await asyncio.wait_for(sandbox.health(), 30)
