"""Checks of things that a sandbox cannot see or do."""

from __future__ import annotations

import json
from contextlib import suppress

from agentrl.sandbox.conformance.arena import Arena, expect
from agentrl.sandbox.conformance.check import check
from agentrl.sandbox.conformance.programs import alive
from agentrl.types.sandbox import SandboxLost

_SYSV = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
id = libc.shmget(0x61a6, 4096, 0o1666 if sys.argv[1] == "make" else 0o666)
print("shared" if id >= 0 else "none")
"""


@check()
async def sandboxes_share_nothing(arena: Arena) -> None:
    """Two sandboxes do not see each other's files, processes, shared memory or abstract sockets."""
    one, two = await arena.open_many(2)
    for folder in (one.spec.workdir, "/tmp", "/dev/shm"):
        await one.write(f"{folder}/canary", "x")
        expect("canary" not in [entry.name for entry in await two.list(folder)], f"{folder} is shared")
    await (await one.session()).run("sleep 61004 &")
    expect(await alive(two, "61004") == 0, "processes of another sandbox are visible")
    made = await one.exec(["python3", "-c", _SYSV, "make"])
    expect(made.stdout == b"shared\n", f"shared memory cannot be made: {made.text[-200:]}")
    expect((await two.exec(["python3", "-c", _SYSV, "find"])).stdout == b"none\n", "System V shared memory is shared")
    listen = "import socket,time; s=socket.socket(socket.AF_UNIX); s.bind('\\0conformance'); s.listen(); "
    server = await one.spawn(["python3", "-c", listen + "print('up', flush=True); time.sleep(60)"])
    await server.read()
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('\\0conformance')"
    expect((await one.exec(["python3", "-c", connect])).ok, "an abstract socket does not work")
    expect(not (await two.exec(["python3", "-c", connect])).ok, "abstract sockets are shared")
    await two.exec("kill -9 -1")
    expect(await alive(one, "61004") == 1, "one sandbox killed processes of another")


@check()
async def nothing_of_the_last_one(arena: Arena) -> None:
    """A sandbox sees no files, processes or variables of an earlier, closed one."""
    first = await arena.open()
    for folder in (first.spec.workdir, "/tmp", "/dev/shm"):
        await first.write(f"{folder}/left-behind", "x")
    await (await first.session()).run("left=behind; export left; sleep 61005 &")
    await first.close()
    for _ in range(3):
        fresh = await arena.open()
        for folder in (fresh.spec.workdir, "/tmp", "/dev/shm"):
            names = [entry.name for entry in await fresh.list(folder)]
            expect("left-behind" not in names, f"{folder} holds files of an earlier sandbox")
        expect((await (await fresh.session()).run("echo $left")).stdout == b"\n", "a shell is reused")
        expect(await alive(fresh, "61005") == 0, "processes of an earlier sandbox run on")


_UNREADABLE = (
    "/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/proc/1/mem", "/proc/1/environ",
    "/sys/kernel/debug/sched", "/sys/kernel/security/lsm", "/sys/firmware/dmi/tables/DMI", "/proc/kpagecount",
    "/proc/keys", "/proc/timer_list",
)  # fmt: skip
_UNWRITABLE = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger",
    "/proc/sys/vm/overcommit_memory", "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max",
    "/proc/1/oom_score_adj", "/dev/kmsg", "/etc/passwd", "/etc/ld.so.preload", "/usr/bin/made-by-a-check",
)  # fmt: skip
_OPEN = """
import json, os, sys
found = []
for path, flags in json.loads(sys.argv[1]):
    try:
        fd = os.open(path, flags | os.O_NONBLOCK)
        if flags & 3 or os.read(fd, 1):
            found.append(path)
    except OSError:
        pass
print(json.dumps(found))
"""


@check()
async def proc_and_sys_hardened(arena: Arena) -> None:
    """Kernel memory, settings, devices, control groups and the system's files are neither readable nor writable."""
    sandbox = await arena.open()
    asked = [(path, 0) for path in _UNREADABLE] + [(path, 1) for path in _UNWRITABLE]
    result = await sandbox.exec(["python3", "-c", _OPEN, json.dumps(asked)])
    expect(result.ok, f"the probe failed: {result.text[-300:]}")
    found = json.loads(result.stdout)
    expect(not found, f"opened: {', '.join(found)}")


_SETTINGS = """
import os
print(*[f"{folder}/{name}" for folder, _, names in os.walk("/proc/sys") for name in names
        if os.access(f"{folder}/{name}", os.W_OK)])
"""


@check()
async def kernel_settings_cannot_be_written(arena: Arena) -> None:
    """Files in /proc/sys are not writable, even those of the sandbox's own namespaces."""
    sandbox = await arena.open()
    found = (await sandbox.exec(["python3", "-c", _SETTINGS])).text.split()
    expect(not found, f"writable: {' '.join(found[:10])}")


@check()
async def no_new_privileges(arena: Arena) -> None:
    """Programs have no capabilities and cannot gain any; setuid is ignored."""
    sandbox = await arena.open()
    status = (await sandbox.exec(["cat", "/proc/self/status"])).text
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    expect(fields["NoNewPrivs"].strip() == "1", "no_new_privs is not set")
    for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        expect(int(fields[kind], 16) == 0, f"{kind} is {fields[kind].strip()}")
    expect("0" not in fields["Uid"].split(), "the user is root")
    setuid = "cp /bin/cat mine; chmod 6755 mine; ./mine /proc/self/status | grep -E '^(Uid|CapEff)'"
    told = (await sandbox.exec(setuid)).text.split()
    expect("0" not in told[1:5] and told[-1].strip("0") == "", f"a setuid program gained power: {told}")
    for command in ("su -c true root </dev/null", "sudo -n true", "mount -t tmpfs none /mnt", "chown 0 ."):
        expect(not (await sandbox.exec(command, timeout_s=20)).ok, f"{command} worked")


_CALLS = """
import ctypes, json, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
found = []
for name, number, args in json.loads(sys.argv[1])["x86_64" if x86 else "aarch64"]:
    pid = os.fork()
    if pid == 0:
        if name == "bpf":
            args = [0, ctypes.create_string_buffer(bytes([2, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 1]) + bytes(115)), 72]
        os._exit(libc.syscall(number, *args) != -1 or ctypes.get_errno() not in (1, 13, 38))
    if os.waitpid(pid, 0)[1]:
        found.append(name)
for flag, name in ((0x10000000, "user"), (0x20000, "mount"), (0x40000000, "network"), (0x20000000, "pid")):
    pid = os.fork()
    if pid == 0:
        os._exit(libc.unshare(flag) == 0)
    if os.waitpid(pid, 0)[1]:
        found.append(f"unshare {name}")
print(json.dumps(found))
"""
_NUMBERS = {
    "x86_64": [
        ("keyctl", 250, [0, -3, 1]), ("perf_event_open", 298, [0, 0, -1, -1, 0]), ("bpf", 321, []),
        ("chroot", 161, [0]), ("swapon", 167, [0, 0]), ("sethostname", 170, [0, 0]), ("init_module", 175, [0, 0, 0]),
        ("mount", 165, [0, 0, 0, 0, 0]), ("reboot", 169, [0xFEE1DEAD, 672274793, 0, 0]), ("acct", 163, [0]),
        ("io_uring_setup", 425, [1, 0]), ("io_setup", 206, [1, 0]), ("socket AF_VSOCK", 41, [40, 1, 0]),
        ("migrate_pages", 256, [0, 0, 0, 0]),
    ],
    "aarch64": [
        ("keyctl", 219, [0, -3, 1]), ("bpf", 280, []), ("sethostname", 161, [0, 0]), ("acct", 89, [0]),
        ("reboot", 142, [0xFEE1DEAD, 672274793, 0, 0]), ("io_uring_setup", 425, [1, 0]), ("io_setup", 0, [1, 0]),
        ("socket AF_VSOCK", 198, [40, 1, 0]), ("migrate_pages", 238, [0, 0, 0, 0]),
    ],
}  # fmt: skip


@check(lambda known: "system calls are not filtered here" if known.syscalls == "none" else "")
async def dangerous_calls_refused(arena: Arena) -> None:
    """Calls that make namespaces, mount, load, trace the kernel, reach its keys or the hypervisor are refused."""
    sandbox = await arena.open()
    result = await sandbox.exec(["python3", "-c", _CALLS, json.dumps(_NUMBERS)])
    expect(result.ok, f"the probe failed: {result.text[-300:]}")
    found = json.loads(result.stdout)
    expect(not found, f"allowed: {', '.join(found)}")


_TRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
found = []
for pid in [int(p) for p in os.listdir("/proc") if p.isdigit()]:
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        continue
    if pid != 1 and b"toolbox" not in line or pid == os.getpid():
        continue
    if libc.ptrace(16, pid, 0, 0) == 0:
        found.append(f"ptrace {pid}")
    for name, flags in (("mem", os.O_RDWR), ("environ", os.O_RDONLY)):
        try:
            os.close(os.open(f"/proc/{pid}/{name}", flags))
            found.append(f"{name} of {pid}")
        except OSError:
            pass
print(found)
"""


@check()
async def toolbox_cannot_be_traced(arena: Arena) -> None:
    """Programs can neither trace the toolbox nor open its memory."""
    sandbox = await arena.open()
    told = (await sandbox.exec(["python3", "-c", _TRACE], timeout_s=20)).text.strip()
    expect(told == "[]", f"reached: {told}")
    expect((await sandbox.exec("echo on")).stdout == b"on\n", "the toolbox does not answer any more")


@check()
async def killing_the_toolbox_ends_one_sandbox(arena: Arena) -> None:
    """A sandbox whose programs kill everything still works or is lost; its neighbours still work."""
    sandbox, neighbour = await arena.open_many(2)
    with suppress(SandboxLost):
        await sandbox.exec("kill -9 -1; kill -9 1; kill -STOP 1; kill -TERM 1", timeout_s=10)
        await sandbox.exec("for s in STOP TERM KILL; do kill -$s -1; done", timeout_s=10)
        result = await sandbox.exec("echo on", timeout_s=10)
        expect(result.stdout == b"on\n", f"it is neither well nor lost: {result}")
    expect((await neighbour.exec("echo on")).stdout == b"on\n", "a neighbour is not well")
    expect((await (await arena.open()).exec("echo on")).ok, "later sandboxes do not start")


@check()
async def no_devices(arena: Arena) -> None:
    """Block devices do not exist and cannot be made."""
    sandbox = await arena.open()
    blocks = (await sandbox.exec("find /dev -type b")).stdout
    expect(blocks == b"", f"block devices: {blocks!r}")
    for kind in ("b 8 0", "c 1 1"):
        expect(not (await sandbox.exec(f"mknod device {kind}")).ok, f"mknod {kind} worked")
