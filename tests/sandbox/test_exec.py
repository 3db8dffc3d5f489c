"""Programs that run to their end: bytes, limits, deadlines, and trees that die whole."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.types.sandbox import SandboxSpec
from tests.waiting import limits

pytestmark = pytest.mark.slow

EVERY_BYTE = bytes(range(256)) * 1024


async def others(sandbox: NamespaceSandbox) -> str:
    """Command lines of all processes in the sandbox but the init and the looker."""
    look = 'for p in /proc/[0-9]*; do case $p in /proc/1|/proc/$$) ;; *) tr "\\0" " " <$p/cmdline;; esac; done 2>&-'
    return (await sandbox.exec(look)).text


async def appears(sandbox: NamespaceSandbox, command: str) -> None:
    """Returns when a program runs in the sandbox. Each look is a call, so that nothing is asked in vain for long."""
    while command not in await others(sandbox):
        pass


async def test_stdin_and_stdout_are_exact(sandbox: NamespaceSandbox) -> None:
    result = await sandbox.exec(["cat"], stdin=EVERY_BYTE)
    assert (result.outcome, result.code, result.stdout, result.stdout_dropped) == ("ok", 0, EVERY_BYTE, 0)


async def test_streams_codes_and_settings(sandbox: NamespaceSandbox) -> None:
    result = await sandbox.exec("pwd; echo $X >&2; exit 7", cwd="/tmp", env={"X": "a=b c"})
    assert (result.outcome, result.code, result.stdout, result.stderr) == ("nonzero", 7, b"/tmp\n", b"a=b c\n")


async def test_arguments_are_exact(sandbox: NamespaceSandbox) -> None:
    arguments = ["", "a b", "$HOME", "ü\n", "--"]
    result = await sandbox.exec(["printf", "%s|", *arguments])
    assert result.stdout.decode() == "|".join(arguments) + "|"


@pytest.mark.parametrize(
    ("command", "cwd", "code"),
    [(["no-such-program"], None, 127), (["/etc/passwd"], None, 126), (["true"], "/nowhere", 127)],
)
async def test_what_cannot_start_is_a_result(
    sandbox: NamespaceSandbox, command: list[str], cwd: str | None, code: int
) -> None:
    result = await sandbox.exec(command, cwd=cwd)
    assert (result.outcome, result.code) == ("nonzero", code)
    assert result.stderr


async def test_death_by_signal(sandbox: NamespaceSandbox) -> None:
    result = await sandbox.exec("kill -SEGV $$")
    assert (result.outcome, result.code) == ("signal", 139)


async def test_nul_bytes_and_endless_timeouts_are_refused(sandbox: NamespaceSandbox) -> None:
    with pytest.raises(ValueError, match="NUL"):
        await sandbox.exec(["echo", "a\0b"])
    with pytest.raises(ValueError, match="finite"):
        await sandbox.exec("true", timeout_s=float("inf"))
    assert (await sandbox.exec("true")).ok


async def test_unread_stdin_does_not_block(sandbox: NamespaceSandbox) -> None:
    assert (await sandbox.exec(["true"], stdin=bytes(4 << 20))).ok


async def test_output_is_cut_in_the_middle_and_counted(sandbox: NamespaceSandbox) -> None:
    result = await sandbox.exec("echo first; seq 1000000; echo last; seq 500000 >&2", output_limit=1000)
    total = len("first\nlast\n") + len("".join(f"{n}\n" for n in range(1, 1_000_001)))
    notice = b"\n[... %d bytes dropped ...]\n" % result.stdout_dropped
    assert result.outcome == "ok"
    assert result.stdout_dropped == total - 1000
    assert len(result.stdout) == 1000 + len(notice)
    assert notice in result.stdout
    assert result.stdout.startswith(b"first\n1\n")
    assert result.stdout.endswith(b"1000000\nlast\n")
    assert result.stderr.endswith(b"500000\n")
    assert result.stderr_dropped > 0


async def test_endless_output_is_stopped(sandbox: NamespaceSandbox) -> None:
    result = await sandbox.exec("yes & yes >&2 & yes", timeout_s=60, output_limit=100)
    assert result.outcome == "output_limit"
    assert result.stdout.startswith(b"y\ny\n")


async def test_a_timeout_keeps_partial_output_and_is_polite_first(sandbox: NamespaceSandbox) -> None:
    command = "trap 'echo told; exit 1' TERM; echo before; while :; do sleep 0.01; done"
    for limit in limits(0.3):
        result = await sandbox.exec(command, timeout_s=limit)
        assert result.outcome == "timeout"
        if result.stdout:
            break
    assert result.stdout == b"before\ntold\n"


async def test_a_deaf_program_is_killed(sandbox: NamespaceSandbox) -> None:
    for limit in limits(0.2):
        result = await sandbox.exec("trap '' TERM; echo on; while :; do sleep 0.1; done", timeout_s=limit)
        assert result.outcome == "timeout"
        if result.stdout:
            break
    assert (result.code, result.stdout) == (137, b"on\n")


ESCAPES = {
    "nohup": "nohup sleep 1001 >/dev/null 2>&1 &",
    "setsid": "setsid sleep 1001 >/dev/null 2>&1 &",
    "double fork": "( ( setsid sleep 1001 >/dev/null 2>&1 & ) & )",
    "hidden": "( env -i setsid sleep 1001 >/dev/null 2>&1 & )",
    "holds the pipe": "( setsid sleep 1001 & )",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
@pytest.mark.parametrize("ending", ["true", "sleep 1002"])
async def test_children_die_with_the_command(sandbox: NamespaceSandbox, escape: str, ending: str) -> None:
    session = await sandbox.session()
    await session.run("(setsid sleep 1003 &)")  # belongs to the session: must live on
    await appears(sandbox, "sleep 1003")  # it may be the shell's fork still
    result = await sandbox.exec(f"{escape}\n{ending}", timeout_s=0.5 if ending != "true" else 120)
    assert result.outcome == ("ok" if ending == "true" else "timeout")
    left = await others(sandbox)
    assert "1001" not in left
    assert "1002" not in left
    assert "sleep 1003" in left


async def test_concurrent_commands_do_not_kill_each_other(sandbox: NamespaceSandbox) -> None:
    slow = asyncio.create_task(
        sandbox.exec("(sh -c 'until test -e go; do sleep 0.01; done'; echo late) & wait; echo end")
    )
    await appears(sandbox, "test -e go")
    for _ in range(5):
        assert (await sandbox.exec("(setsid sleep 1001 &) ; true")).ok
    await sandbox.write("go", "")
    assert (await slow).stdout == b"late\nend\n"


async def test_two_hundred_at_once(sandbox: NamespaceSandbox) -> None:
    results = await asyncio.gather(*(sandbox.exec(["echo", str(n)]) for n in range(200)))
    assert [result.text for result in results] == [f"{n}\n" for n in range(200)]


async def test_cancelling_kills(sandbox: NamespaceSandbox) -> None:
    task = asyncio.create_task(sandbox.exec("setsid sleep 1001 & sleep 1002"))
    await appears(sandbox, "sleep 1002")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while "100" in await others(sandbox):
        pass


# A program whose main thread has ended and whose other thread has not: the kernel calls it a zombie, and it runs on.
HEADLESS = """
import ctypes, itertools, signal, sys, threading
def count():
    for n in itertools.count():
        with open("/tmp/count", "w") as file: file.write(str(n))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=count).start()
ctypes.CDLL(None).syscall(SYS_EXIT, 0)
""".replace("SYS_EXIT", "60" if os.uname().machine == "x86_64" else "93")


@pytest.mark.parametrize("command", ['exec "$@"', '"$@" & until grep -q ") Z" /proc/$!/stat; do sleep 0.01; done'])
async def test_a_program_without_its_main_thread_dies_too(
    sandbox: NamespaceSandbox, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("agentrl.sandbox.toolbox.wire.MARGIN_S", 5.0)
    wanted, first_s = ("timeout", 1.0) if command.startswith("exec") else ("ok", 120.0)
    for limit in limits(first_s):
        result = await sandbox.exec(["sh", "-c", command, "sh", "python3", "-c", HEADLESS], timeout_s=limit)
        assert result.outcome == wanted
        if (await sandbox.exec("test -e /tmp/count")).ok:  # its other thread had begun
            break
    assert (await sandbox.exec("cat /proc/[0-9]*/task/*/comm")).text == "python3\ncat\n"  # the toolbox, the looker


async def test_fork_bomb(backend: NamespaceBackend) -> None:
    sandbox = await backend.create(SandboxSpec(pids=64))
    session = await sandbox.session()
    await session.run("x=5")
    bomb = "bomb() { bomb | bomb & bomb; }; bomb 2>/dev/null; while :; do sleep 1; done"
    result = await sandbox.exec(bomb, timeout_s=1.0)
    assert result.outcome in ("timeout", "signal")
    assert (await sandbox.health()).processes == 2  # the toolbox and the session
    assert (await session.run("echo $x")).text == "5\n"


async def test_memory_bomb(backend: NamespaceBackend) -> None:
    if backend.capabilities.memory == "rlimit":
        pytest.skip("no writable cgroup on this machine")
    sandbox = await backend.create(SandboxSpec(memory_mb=64))
    bomb = "b = []\nwhile True: b.append(bytearray(1 << 20))"
    assert (await sandbox.exec(["python3", "-c", bomb], timeout_s=30)).outcome == "oom"
    assert (await sandbox.exec("kill -9 $$")).outcome == "signal"  # not every 137 is out of memory
    kernel = await sandbox.python()
    cell = await kernel.run(bomb, timeout_s=30)
    assert cell.outcome == "oom"
    assert "variables are lost" in cell.note
    assert (await kernel.run("1 + 1")).value == "2"
    health = await sandbox.health()
    assert health.alive
    assert health.oom_kills == 2


MANY = """
import os, signal
for _ in range(100):
    if os.fork() == 0:
        signal.pause()
"""


async def test_limits_without_cgroups() -> None:
    backend = NamespaceBackend(cgroups=False)
    try:
        assert backend.capabilities.memory == "rlimit"
        sandbox = await backend.create(SandboxSpec(pids=64))
        hungry = await sandbox.exec(["python3", "-c", "bytearray(2 << 30)"])
        assert b"MemoryError" in hungry.stderr
        result = await sandbox.exec("bomb() { bomb | bomb & bomb; }; bomb 2>/dev/null; sleep 60", timeout_s=1.0)
        assert result.outcome in ("timeout", "signal")
        if os.geteuid() != 0 or backend._host.drops:  # root's user id is exempt from the limit on processes
            many = await sandbox.exec(["python3", "-c", MANY])
            assert b"Resource temporarily unavailable" in many.stderr
        assert (await sandbox.exec("echo fine")).text == "fine\n"
    finally:
        await backend.close()


async def test_disk_bomb(backend: NamespaceBackend) -> None:
    sandbox = await backend.create(SandboxSpec(disk_mb=4))
    for folder in ("/work", "/tmp", "/dev/shm"):
        result = await sandbox.exec(f"head -c 8M /dev/zero > {folder}/big")
        assert b"No space left" in result.stderr, folder
    with pytest.raises(OSError, match="No space left"):
        await sandbox.write("more", bytes(8 << 20))
    assert (await sandbox.exec("rm big; echo fine")).text == "fine\n"


async def test_processes_to_talk_to(sandbox: NamespaceSandbox) -> None:
    process = await sandbox.spawn(["tee", "/dev/stderr"])
    await process.write(b"one\0")
    assert await process.read() == b"one\0"
    assert await process.read("stderr") == b"one\0"
    assert await process.wait(0.05) is None
    await process.close_stdin()
    ended = await process.wait(300)
    assert ended is not None
    assert ended.outcome == "ok"
    assert await process.read() == b""


async def test_writes_at_the_same_time_take_turns(sandbox: NamespaceSandbox) -> None:
    """Each is more than a pipe holds."""
    process = await sandbox.spawn(["sha256sum"])
    parts = [letter * (1 << 20) for letter in (b"a", b"b", b"c")]
    await asyncio.gather(*(process.write(part) for part in parts))
    await process.close_stdin()
    assert (await process.read()).decode().split()[0] == hashlib.sha256(b"".join(parts)).hexdigest()


async def test_a_spawned_flood_waits_for_its_reader(sandbox: NamespaceSandbox) -> None:
    process = await sandbox.spawn("setsid sleep 1001 & yes")
    assert (await sandbox.exec("echo meanwhile")).text == "meanwhile\n"
    got = 0
    while got < 1 << 20:
        got += len(await process.read(size=1 << 18))
    await process.kill()
    assert "1001" not in await others(sandbox)
    assert "yes" not in await others(sandbox)


async def test_cancelling_a_spawn_kills(sandbox: NamespaceSandbox) -> None:
    spawning = asyncio.create_task(sandbox.spawn("setsid sleep 1001 & sleep 1002"))
    await asyncio.sleep(0)  # asked for, not answered
    id = str(sandbox.wire._last_id)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    while "100" in await others(sandbox):
        pass
    with pytest.raises(ProcessLookupError):  # its pipes are closed
        await sandbox.wire.request("process_close", {"job": id})


async def test_spawning_what_is_not_there(sandbox: NamespaceSandbox) -> None:
    with pytest.raises(FileNotFoundError):
        await sandbox.spawn(["no-such-program"])


async def test_the_peak_of_memory(sandbox: NamespaceSandbox) -> None:
    eat = ["python3", "-c", "x = bytearray(150 << 20); del x"]
    alone, below = await sandbox.exec(eat), await sandbox.exec(["sh", "-c", '"$@"; true', "sh", *eat])
    for result in (alone, below):
        assert result.peak_mem_mb is not None
        assert 150 < result.peak_mem_mb < 200
    process = await sandbox.spawn(eat)
    end = await process.wait(300)
    assert end is not None
    assert end.peak_mem_mb is not None
    assert 150 < end.peak_mem_mb < 200
    assert (await (await sandbox.session()).run("head -c 50M /dev/zero | tail -c 40M | wc -c")).peak_mem_mb is None
    assert (await sandbox.exec("true")).peak_mem_mb is None  # what others had is not its own
    await sandbox.write("large", bytes(64 << 20))
    assert (await sandbox.exec("true")).peak_mem_mb is None  # nor is what the toolbox had
