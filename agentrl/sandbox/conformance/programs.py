"""Checks of programs that run to their end: bytes, deadlines, and the end of whole process trees."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress

from agentrl.sandbox.conformance.arena import Arena, expect
from agentrl.sandbox.conformance.check import check
from agentrl.types.sandbox import ExecResult, Sandbox

_EVERY_BYTE = bytes(range(256))
_MIB = 1 << 20


def data(size: int) -> bytes:
    """Returns bytes of every value, without a short period."""
    block = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(251)) + _EVERY_BYTE
    return (block * (size // len(block) + 1))[:size]


async def alive(sandbox: Sandbox, mark: str) -> int:
    """Returns the number of processes of the sandbox with the mark as an argument."""
    look = (
        "import os, sys\n"
        "def line(pid):\n"
        "    try: return open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\\0')\n"
        "    except OSError: return []\n"
        "me = str(os.getpid())\n"
        "print(sum(sys.argv[1].encode() in line(p) for p in os.listdir('/proc') if p.isdigit() and p != me))"
    )
    return int((await sandbox.exec(["python3", "-c", look, mark], timeout_s=300)).text)


async def gone(sandbox: Sandbox, mark: str) -> bool:
    """Returns True if, within some seconds, no process has the mark as an argument."""
    for _ in range(100):
        if await alive(sandbox, mark) == 0:
            return True
        await asyncio.sleep(0.05)
    return False


@check()
async def bytes_exact(arena: Arena) -> None:
    """Stdin, stdout, stderr and files carry 0 B to 1 MiB exactly."""
    sandbox = await arena.open()
    for size in (0, 1, 4095, 65537, _MIB):
        sent = data(size)
        result = await sandbox.exec("tee /dev/stderr", stdin=sent, output_limit=2 * _MIB)
        expect(result.stdout == sent, f"{size} bytes of stdin came back as {len(result.stdout)} on stdout")
        expect(result.stderr == sent, f"{size} bytes of stdin came back as {len(result.stderr)} on stderr")
        await sandbox.write("file", sent)
        expect(await sandbox.read("file") == sent, f"a file of {size} bytes came back different")


@check()
async def hundred_megabytes_exact(arena: Arena) -> None:
    """100 MB go in by stdin and by file, and come out by stdout and by file, exactly."""
    sandbox = await arena.open()
    sent = data(100_000_000)
    digest = hashlib.sha256(sent).hexdigest()
    await sandbox.write("file", sent)
    told = await sandbox.exec(["sha256sum", "file"], timeout_s=300)
    expect(told.text.startswith(digest), f"what was written is not what arrived: {told.text[:80]}")
    expect(await sandbox.read("file", limit=1 << 27) == sent, "what was read is not what was there")
    result = await sandbox.exec(["cat"], stdin=sent, timeout_s=300, output_limit=1 << 28)
    expect(result.outcome == "ok" and result.stdout == sent, f"cat: {result.outcome}, {len(result.stdout)} bytes")


@check()
async def one_megabyte_of_output(arena: Arena) -> None:
    """1 MiB on both streams at the same time neither blocks the program nor is lost."""
    sandbox = await arena.open()
    command = f"head -c {_MIB} /dev/zero & head -c {_MIB} /dev/zero >&2; wait; echo end"
    result = await sandbox.exec(command, timeout_s=30, output_limit=4 * _MIB)  # the whole output
    expect(result.outcome == "ok", f"the program ended with {result.outcome}")
    expect(result.stdout == bytes(_MIB) + b"end\n", f"{len(result.stdout)} bytes of stdout")
    expect(result.stderr == bytes(_MIB), f"{len(result.stderr)} bytes of stderr")


@check()
async def endless_output(arena: Arena) -> None:
    """Endless output ends the program, not the host: head and tail are returned, the rest is counted."""
    sandbox = await arena.open()
    result = await sandbox.exec("echo first; yes", timeout_s=30, output_limit=1000)
    expect(result.outcome in ("output_limit", "timeout"), f"it ended with {result.outcome}")
    expect(result.stdout.startswith(b"first\ny\n"), "the head of the output is gone")
    expect(len(result.stdout) < 2000 and result.stdout_dropped > 0, f"{len(result.stdout)} bytes were kept")
    finite = await sandbox.exec("seq 100000", output_limit=1000)
    total = len("".join(f"{n}\n" for n in range(1, 100_001)))
    expect(finite.stdout.endswith(b"\n100000\n"), "the tail of the output is gone")
    expect(finite.stdout_dropped == total - 1000, f"{finite.stdout_dropped} bytes dropped, should be {total - 1000}")


@check()
async def partial_output_on_timeout(arena: Arena) -> None:
    """A command that times out is a result with the output so far."""
    sandbox = await arena.open()
    result = await _timed_out(sandbox, "echo before; echo also >&2; sleep 1000")
    expect(result.stdout == b"before\n" and result.stderr == b"also\n", f"kept: {result.stdout!r}, {result.stderr!r}")


async def _timed_out(sandbox: Sandbox, command: str) -> ExecResult:
    """Returns the result of a command that never ends. On a slow machine a short time may give no output."""
    for limit in (0.5, 5.0, 30.0):
        result = await sandbox.exec(command, timeout_s=limit)
        expect(result.outcome == "timeout", f"it ended with {result.outcome}")
        if result.stdout:
            break
    return result


@check()
async def deaf_programs_die(arena: Arena) -> None:
    """A timeout sends TERM first, and kills programs that ignore it."""
    sandbox = await arena.open()
    polite = await _timed_out(sandbox, "trap 'echo told; exit 1' TERM; while :; do sleep 0.01; done")
    expect(polite.stdout == b"told\n", f"the program was not asked: {polite.stdout!r}")
    await _timed_out(sandbox, "trap '' TERM INT HUP; echo deaf; while :; do sleep 0.05; done")


_ESCAPES = {
    "nohup": "nohup sleep 61001 >/dev/null 2>&1 &",
    "setsid": "setsid sleep 61001 >/dev/null 2>&1 &",
    "double fork": "( ( setsid sleep 61001 >/dev/null 2>&1 & ) & )",
    "no environment": "( env -i setsid sleep 61001 >/dev/null 2>&1 & )",
    "holds the pipe": "( setsid sleep 61001 & )",
}


@check()
async def children_die_at_the_end(arena: Arena) -> None:
    """Children that nohup, setsid or fork twice die with the command that ended by itself."""
    sandbox = await arena.open()
    for kind, escape in _ESCAPES.items():
        result = await sandbox.exec(f"{escape}\necho done", timeout_s=300)
        expect(result.outcome == "ok" and result.stdout == b"done\n", f"{kind}: ended with {result.outcome}")
        expect(await alive(sandbox, "61001") == 0, f"{kind}: the child is still there")


@check()
async def children_die_at_a_timeout(arena: Arena) -> None:
    """Children that nohup, setsid or fork twice die with the command that timed out."""
    sandbox = await arena.open()
    for kind, escape in _ESCAPES.items():
        result = await sandbox.exec(f"{escape}\nsleep 61002", timeout_s=0.4)
        expect(result.outcome == "timeout", f"{kind}: ended with {result.outcome}")
        expect(await alive(sandbox, "61001") == 0, f"{kind}: the child is still there")
        expect(await alive(sandbox, "61002") == 0, f"{kind}: the command is still there")


@check()
async def neighbours_of_a_command_live(arena: Arena) -> None:
    """The end of one command kills no process of a concurrent command or of a session."""
    sandbox = await arena.open()
    session = await sandbox.session()
    await session.run("(setsid sleep 61003 &)")
    slow = asyncio.create_task(sandbox.exec("(sleep 0.6; echo late) & wait; echo end"))
    await asyncio.sleep(0.1)
    for _ in range(5):
        await sandbox.exec("(setsid sleep 61001 &) ; true")
    expect((await slow).stdout == b"late\nend\n", "a command beside was cut short")
    expect(await alive(sandbox, "61003") == 1, "a background job of the session was killed")


# Orphans that imitate every process: environment, limits, group and session.
_IMPOSTORS = """
import os, resource, time
def lines(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
def lower(pid):
    for which, line in enumerate(lines(pid, "limits").splitlines()[1:]):
        soft, hard = (resource.RLIM_INFINITY if word == b"unlimited" else int(word) for word in line[26:].split()[:2])
        try:
            resource.setrlimit(which, (soft, hard))
        except (ValueError, OSError):
            pass
parent = os.getpid()
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()] + [0]:
    for limited in (True, False):
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            while os.getppid() != 1:
                time.sleep(0.001)
            env = dict(row.split(b"=", 1) for row in lines(pid, "environ").split(b"\\0") if b"=" in row)
            guesses = {b"AGENTRL_JOB": b"shell:main"} if pid == 0 else {}
            if limited:
                lower(pid)
            os.execve("/usr/bin/sleep" if os.path.exists("/usr/bin/sleep") else "/bin/sleep",
                      ["sleep", "61004"], {**env, **guesses})
"""


@check()
async def nobody_takes_anothers_name(arena: Arena) -> None:
    """An orphan that imitates one of a session or of another command dies with the command that started it."""
    sandbox = await arena.open()
    session = await sandbox.session()
    await session.run("(setsid sleep 61003 &)")
    await (await sandbox.python()).run("import os; os.system('setsid sleep 61003 &')")
    other = await sandbox.spawn("(setsid sleep 61003 &) ; echo on; sleep 600")
    expect(await other.read() == b"on\n", "a program cannot be started")
    for command in (_IMPOSTORS, f"{_IMPOSTORS}\ntime.sleep(600)"):
        await sandbox.exec(["python3", "-c", command], timeout_s=3)
        expect(await alive(sandbox, "61004") == 0, "an orphan outlives its command")
        expect(await alive(sandbox, "61003") == 3, "orphans of sessions or of another program were killed")
    await session.run(f"python3 -c '{_IMPOSTORS}\ntime.sleep(600)'", timeout_s=3)
    expect(await alive(sandbox, "61004") == 0, "an orphan outlives the command of a session that timed out")
    expect(await alive(sandbox, "61003") == 3, "a timeout of a session killed what it had started before")


@check()
async def commands_run_side_by_side(arena: Arena) -> None:
    """Two commands of one sandbox run at the same time: each waits for a file of the other."""
    sandbox = await arena.open()
    wait = "touch {0}; until [ -e {1} ]; do sleep 0.02; done; echo met"
    both = await asyncio.gather(
        sandbox.exec(wait.format("a", "b"), timeout_s=300), sandbox.exec(wait.format("b", "a"), timeout_s=300)
    )
    expect([each.stdout for each in both] == [b"met\n"] * 2, f"they did not meet: {[e.outcome for e in both]}")


@check()
async def two_hundred_at_once(arena: Arena) -> None:
    """200 commands at the same time all end, each with its own output."""
    sandbox = await arena.open(**({} if arena.backend.capabilities.pids == "none" else {"pids": 512}))
    results = await asyncio.gather(*(sandbox.exec(["echo", str(n)], timeout_s=300) for n in range(200)))
    wrong = [n for n, result in enumerate(results) if result.stdout != f"{n}\n".encode()]
    expect(not wrong, f"{len(wrong)} answers are wrong, the first: {wrong and results[wrong[0]]}")


@check()
async def cancel_mid_exec(arena: Arena) -> None:
    """A cancelled call ends its program and that program's children; the sandbox still works."""
    sandbox = await arena.open()
    task = asyncio.create_task(sandbox.exec("setsid sleep 61001 & sleep 61002"))
    for _ in range(200):
        if await alive(sandbox, "61002"):
            break
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    expect(await gone(sandbox, "61002") and await gone(sandbox, "61001"), "what was cancelled runs on")
    expect((await sandbox.exec("echo on")).stdout == b"on\n", "the sandbox does not answer any more")


@check()
async def stdin_eof(arena: Arena) -> None:
    """A program that reads stdin without input gets end of file at once."""
    sandbox = await arena.open()
    result = await sandbox.exec(["cat"], timeout_s=300)
    expect(result.outcome == "ok" and result.stdout == b"", f"cat ended with {result.outcome}")
    unread = await sandbox.exec(["true"], stdin=bytes(4 * _MIB), timeout_s=300)
    expect(unread.outcome == "ok", f"a program that does not read its stdin ended with {unread.outcome}")


@check()
async def arguments_exact(arena: Arena) -> None:
    """Arguments arrive unchanged: empty, with blanks, quotes, newlines, non-ASCII characters."""
    sandbox = await arena.open()
    arguments = ["", "a b", "$HOME", "'\"\\", "ü\n☃", "--", "*"]
    result = await sandbox.exec(["printf", "%s|", *arguments])
    expect(result.stdout.decode() == "|".join(arguments) + "|", f"they arrived as {result.stdout!r}")


@check()
async def codes_and_signals(arena: Arena) -> None:
    """Exit codes and deaths by signal are distinguished; a program that cannot start is a result with 126 or 127."""
    sandbox = await arena.open()
    for command, outcome, code in (
        ("exit 0", "ok", 0),
        ("exit 7", "nonzero", 7),
        ("kill -SEGV $$", "signal", 139),
        ("kill -9 $$", "signal", 137),
        (["no-such-program"], "nonzero", 127),
        (["/etc/passwd"], "nonzero", 126),
    ):
        result = await sandbox.exec(command)
        expect((result.outcome, result.code) == (outcome, code), f"{command}: {result.outcome}, code {result.code}")
    nowhere = await sandbox.exec("true", cwd="/nowhere")
    expect(nowhere.outcome == "nonzero", f"a folder that does not exist: {nowhere.outcome}")


@check()
async def environment_and_user(arena: Arena) -> None:
    """Programs run in the workdir as a non-root user, with the requested environment and nothing of the host's."""
    os.environ["AGENTRL_CONFORMANCE_SECRET"] = "of the host"
    try:
        sandbox = await arena.open(env={"SPEC": "1"})
        env = (await sandbox.exec("env; cat /proc/*/environ 2>/dev/null", env={"CALL": "a=b c"})).text
    finally:
        del os.environ["AGENTRL_CONFORMANCE_SECRET"]
    expect("CONFORMANCE_SECRET" not in env, "a variable of the host is visible")
    expect("SPEC=1\n" in env and "CALL=a=b c\n" in env, f"variables that were given are missing: {env[:300]}")
    told = (await sandbox.exec('pwd; id -u; [ -w "$HOME" ] && [ -w . ] && [ -w /tmp ] && echo writable')).text.split()
    expect(told[0] == sandbox.spec.workdir, f"the first folder is {told[0]}")
    expect(told[1] != "0", "the user is root")
    expect(told[2:] == ["writable"], "home, workdir or /tmp cannot be written")


@check()
async def broken_bin(arena: Arena) -> None:
    """A sandbox with deleted or unreachable programs still answers; others still work."""
    sandbox, neighbour = await arena.open_many(2)
    lost = await sandbox.exec("ls /", env={"PATH": "/nowhere"})
    expect(lost.outcome == "nonzero", f"without PATH: {lost.outcome}")
    await sandbox.exec("rm -rf /bin /usr/bin /sbin /usr/sbin /usr/lib /lib 2>/dev/null", timeout_s=30)
    after = await sandbox.exec(["echo", "on"], timeout_s=300)
    expect(after.outcome in ("ok", "nonzero"), f"after deleting /bin: {after.outcome}")
    await sandbox.write("file", b"x")
    expect(await sandbox.read("file") == b"x", "files cannot be read any more")
    expect((await neighbour.exec(["echo", "on"])).stdout == b"on\n", "a neighbour lost its programs")
    fresh = await arena.open()
    expect((await fresh.exec(["echo", "on"])).stdout == b"on\n", "later sandboxes lost their programs")


@check()
async def programs_to_talk_to(arena: Arena) -> None:
    """A spawned program can be written to, read, waited for and killed with all its children."""
    sandbox = await arena.open()
    process = await sandbox.spawn(["tee", "/dev/stderr"])
    await process.write(b"one\0")
    expect(await process.read() == b"one\0" and await process.read("stderr") == b"one\0", "it did not answer")
    expect(await process.wait(0.05) is None, "it ended by itself")
    await process.close_stdin()
    ended = await process.wait(10)
    expect(ended is not None and ended.outcome == "ok", f"it ended with {ended}")
    flood = await sandbox.spawn("setsid sleep 61001 & yes")
    expect((await sandbox.exec("echo meanwhile")).stdout == b"meanwhile\n", "a flood blocks the sandbox")
    await flood.kill()
    expect(await gone(sandbox, "61001"), "a child of a killed program is still there")
