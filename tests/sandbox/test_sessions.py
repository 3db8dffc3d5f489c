"""Shells and kernels that keep their state, also after what went wrong."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.sandbox.namespace.backend import NamespaceSandbox
from tests.sandbox.test_exec import appears
from tests.waiting import limits

pytestmark = pytest.mark.slow


async def test_a_shell_keeps_folder_variables_and_functions(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    assert await shell.cwd() == "/work"
    first = await shell.run("mkdir -p 'a b'; cd 'a b'; x=5; f() { echo f$1; }; export Y=6")
    assert (first.outcome, first.code, first.stdout) == ("ok", 0, b"")
    assert await shell.cwd() == "/work/a b"
    assert (await shell.run("f $x; sh -c 'echo $Y'; pwd")).text == "f5\n6\n/work/a b\n"
    assert await sandbox.session() is shell
    assert (await (await sandbox.session("other")).run("pwd; echo $x")).text == "/work\n\n"


async def test_codes_and_both_streams_in_order(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    result = await shell.run("echo a; echo b >&2; echo c; (exit 9)")
    assert (result.outcome, result.code, result.text) == ("nonzero", 9, "a\nb\nc\n")
    assert (await shell.run("echo $?")).text == "9\n"
    assert (await shell.run("no-such-program")).code == 127


async def test_the_folder_is_the_kernels_word(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    await shell.run("pwd() { echo /lies; }; cd() { builtin cd /tmp; PWD=/lies; }; cd /work")
    assert await shell.cwd() == "/tmp"


@pytest.mark.parametrize(
    "command",
    [
        "printf '0\\0'",  # what an answer looks like
        "printf '0\\0' >&501; printf '0\\0' >/proc/self/fd/501",  # where answers go: not open here
        "cat <&500; read -u 500 x",
        "cat; read x",  # stdin holds nothing, so no later command is swallowed
        "echo 'unbalanced",
        "if true; then",
        ") }",
        "cat <<EOF\nhere\nEOF",
        "exec 3>&1; exec 3>&-",
        "trap 'echo trapped' EXIT",
        "return 3; break; continue",
        "",
        "# nothing",
    ],
)
async def test_nothing_confuses_the_shell(sandbox: NamespaceSandbox, command: str) -> None:
    shell = await sandbox.session()
    assert (await shell.run(command, timeout_s=120)).outcome != "timeout"
    result = await shell.run("echo next; (exit 4)", timeout_s=120)
    assert (result.text, result.code) == ("next\n", 4)


async def test_output_of_any_bytes_and_size(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    raw = (await shell.run('for i in $(seq 0 255); do printf "\\\\x$(printf %x $i)"; done')).stdout
    assert raw == bytes(range(256))
    big = await shell.run("seq 1000000; echo end", output_limit=100)
    assert big.stdout.startswith(b"1\n2\n")
    assert big.stdout.endswith(b"end\n")
    assert big.stdout_dropped > 6_000_000
    long = "x" * 200_000
    assert (await shell.run(f"v={long}; echo ${{#v}}")).text == "200000\n"


NEXT_TICK = "now() { cut -d' ' -f22 /proc/self/stat; }; first=$(now); until [ $(now) -gt $((first + 1)) ]; do :; done"
"""Processes that start within one tick of the kernel's clock (10 ms) count as the next command's."""

TIMEOUTS = {
    "program": "sleep 1001; echo bad",
    "loop of programs": "while :; do sleep 0.05; done; echo bad",
    "busy loop": "while :; do :; done; echo bad",
    "pipe": "yes | sleep 1001; echo bad",
    "subshell": "(sleep 1001; echo bad); echo bad",
    "deaf program": "sh -c 'trap \"\" TERM; while :; do sleep 0.05; done'; echo bad",
    "escapee": "setsid sleep 1001 & wait; echo bad",
}


@pytest.mark.parametrize("command", TIMEOUTS.values(), ids=TIMEOUTS.keys())
async def test_a_shell_survives_a_timeout_with_its_state(sandbox: NamespaceSandbox, command: str) -> None:
    shell = await sandbox.session()
    await shell.run("cd /tmp; x=5; (setsid sleep 1003 &)")
    await appears(sandbox, "sleep 1003")
    await shell.run(NEXT_TICK)
    for limit in limits(0.3):
        result = await shell.run(f"echo partial; {command}", timeout_s=limit)
        assert result.outcome == "timeout"
        if result.stdout:
            break
    assert result.stdout.startswith(b"partial\n")
    assert b"bad" not in result.stdout
    assert (await shell.run("echo $x; pwd")).text == "5\n/tmp\n"
    left = (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).text
    assert "1001" not in left
    assert "sleep 1003" in left  # the session's own background job is left alone


async def test_a_shell_that_cannot_be_saved_is_replaced(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    await shell.run("cd /tmp; x=5")
    for limit in limits(0.2):
        result = await shell.run("trap '' USR1 INT TERM; echo on; while :; do :; done", timeout_s=limit)
        assert result.outcome == "timeout"
        if result.stdout:
            break
    assert b"variables are lost" in result.stderr
    assert (await shell.run("echo x=$x; pwd")).text == "x=\n/tmp\n"


async def test_exit_ends_the_shell_not_the_session(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    result = await shell.run("cd /tmp; mkdir d; cd d; echo bye; exit 3")
    assert (result.outcome, result.code, result.stdout) == ("nonzero", 3, b"bye\n")
    assert b"variables are lost" in result.stderr
    assert (await shell.run("echo again")).text == "again\n"
    await shell.run("cd /tmp/d; rmdir /tmp/d")
    await shell.run("exit")
    assert (await shell.run("pwd")).text == "/work\n"  # its folder was gone


async def test_cancel_interrupt_and_restart(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    await shell.run("x=5")
    task = asyncio.create_task(shell.run("sleep 1001"))
    await appears(sandbox, "sleep 1001")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await shell.run("echo $x")).text == "5\n"
    task = asyncio.create_task(shell.run("echo on; sleep 1004"))
    await appears(sandbox, "sleep 1004")
    await shell.interrupt()
    result = await task
    assert (result.outcome, result.stdout.splitlines()[0]) == ("signal", b"on")
    await shell.run("cd /tmp; sleep 1002 &")
    await shell.restart()
    assert (await shell.run("echo x=$x; pwd; cat /proc/[0-9]*/comm | grep -c sleep")).text == "x=\n/work\n0\n"


@pytest.mark.parametrize("kind", ["shell", "kernel"])
async def test_a_timeout_at_the_very_end_costs_no_later_request(sandbox: NamespaceSandbox, kind: str) -> None:
    session = await sandbox.session() if kind == "shell" else await sandbox.python()
    slow, next_one = (
        ("sleep 0.05", "echo next") if kind == "shell" else ("import time; time.sleep(0.05)", "print('next')")
    )
    await session.run(slow)
    for step in range(12):
        await session.run(slow, timeout_s=0.046 + 0.002 * step)
        assert (await session.run(next_one)).text.strip() == "next"


async def test_commands_of_one_shell_take_turns(sandbox: NamespaceSandbox) -> None:
    shell = await sandbox.session()
    results = await asyncio.gather(*(shell.run(f"sleep 0.02; echo {n}") for n in range(5)))
    assert [result.text for result in results] == [f"{n}\n" for n in range(5)]


async def test_cells_keep_state_and_show_values(sandbox: NamespaceSandbox) -> None:
    kernel = await sandbox.python()
    first = await kernel.run("import sys\nx = 3\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert (first.outcome, first.output, first.value) == ("ok", "out\nerr\n", "4")
    assert (await kernel.run("def f(): return x\nf() + _")).value == "7"
    assert (await kernel.run("y = None\ny")).value is None
    assert (await kernel.run("import os; os.system('echo child'); 'a\\0b'")).text == "child\n'a\\x00b'"
    await kernel.restart()
    assert (await kernel.run("x")).outcome == "error"


async def test_errors_are_told_without_the_kernels_own_frames(sandbox: NamespaceSandbox) -> None:
    kernel = await sandbox.python()
    await kernel.run("def f():\n    1 / 0")
    failed = await kernel.run("print('before')\nf()")
    assert (failed.outcome, failed.output) == ("error", "before\n")
    assert failed.traceback is not None
    assert failed.traceback.count("File ") == 2
    assert "1 / 0" in failed.traceback
    assert "kernel.py" not in failed.traceback
    for code in ("1 +", "\udcff", "exit(3)", "raise KeyboardInterrupt", "input()"):
        assert (await kernel.run(code)).outcome == "error", code
    assert (await kernel.run("2")).value == "2"


async def test_a_kernel_survives_a_timeout_and_is_replaced_if_it_must(sandbox: NamespaceSandbox) -> None:
    kernel = await sandbox.python()
    await kernel.run("x = 3")
    for limit in limits(0.3):
        slow = await kernel.run("print('on')\nimport time\ntime.sleep(1000)", timeout_s=limit)
        assert (slow.outcome, slow.note) == ("timeout", "")
        if slow.output:
            break
    assert slow.output == "on\n"
    assert "kernel.py" not in str(slow.traceback)
    assert (await kernel.run("x")).value == "3"
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on')\nwhile True: pass"
    for limit in limits(0.2):
        deaf = await kernel.run(stubborn, timeout_s=limit)
        assert deaf.outcome == "timeout"
        if deaf.output:
            break
    assert "variables are lost" in deaf.note
    died = await kernel.run("import os; os._exit(4)")
    assert (died.outcome, "code 4" in died.note) == ("died", True)
    assert (await kernel.run("1")).value == "1"
