"""Checks of shells and Python kernels: they keep their state, also after failures."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from agentrl.sandbox.conformance.arena import Arena, expect
from agentrl.sandbox.conformance.check import check
from agentrl.sandbox.conformance.programs import alive, gone


@check()
async def shell_keeps_state(arena: Arena) -> None:
    """A shell keeps its folder, variables and functions; shells of other names have separate ones."""
    sandbox = await arena.open()
    shell = await sandbox.session()
    await shell.run("mkdir 'a b'; cd 'a b'; x=5; f() { echo f$1; }; export Y=6")
    told = await shell.run("f $x; sh -c 'echo $Y'; pwd; (exit 9)")
    expect(told.text == f"f5\n6\n{sandbox.spec.workdir}/a b\n", f"it told {told.text!r}")
    expect((told.outcome, told.code) == ("nonzero", 9), f"{told.outcome}, code {told.code}")
    expect(await shell.cwd() == f"{sandbox.spec.workdir}/a b", f"its folder is said to be {await shell.cwd()}")
    other = await (await sandbox.session("other")).run("pwd; echo $x")
    expect(other.text == f"{sandbox.spec.workdir}\n\n", f"another shell told {other.text!r}")


_TIMEOUTS = {
    "a program": "sleep 62001; echo bad",
    "a loop of programs": "while :; do sleep 0.05; done; echo bad",
    "a busy loop": "while :; do :; done; echo bad",
    "a pipe": "yes | sleep 62001; echo bad",
    "a deaf program": "sh -c 'trap \"\" TERM; while :; do sleep 0.05; done'; echo bad",
    "an escapee": "setsid sleep 62001 & wait; echo bad",
}


@check()
async def shell_survives_timeouts(arena: Arena) -> None:
    """A command that times out is killed with its children; partial output, shell, folder and variables remain."""
    sandbox = await arena.open()
    shell = await sandbox.session()
    await shell.run("cd /tmp; x=5")
    for kind, command in _TIMEOUTS.items():
        result = await shell.run(f"echo partial; {command}", timeout_s=0.4)
        expect(result.outcome == "timeout", f"{kind}: ended with {result.outcome}")
        expect(result.stdout.startswith(b"partial\n"), f"{kind}: partial output is lost: {result.stdout!r}")
        expect(b"bad" not in result.stdout, f"{kind}: the command went on after its timeout")
        told = await shell.run("echo $x; pwd", timeout_s=10)
        expect(told.stdout == b"5\n/tmp\n", f"{kind}: the next command told {told.stdout!r}, {told.outcome}")
        expect(await alive(sandbox, "62001") == 0, f"{kind}: a child runs on")


_NOISE = (  # output that a parser of markers, prompts or echoes could take for the end of the command
    "printf '0\\0'",
    "printf '1 0\\0'; printf '2 0\\0'; printf '3 0\\0'",
    "for fd in $(seq 3 9) 500 501; do printf '0\\0' >&$fd; done 2>/dev/null",
    "echo SHELLPS1PREFIX; echo '$PS1'; echo ___BEGIN___; echo ___END___0; echo '__EXIT_CODE__:0'",
    "PS1='> '; PS2='> '; PROMPT_COMMAND='echo prompt'; set -v; set +v",
    "cat; read x",
    "cat <&500; read -u 500 x",
    "stty raw; tput reset; printf '\\033[2J'",
    "set; declare -f; tr '\\0' '\\n' </proc/$$/cmdline; fc -l",
    'set -v; trap \'printf "%s\\n" "$BASH_COMMAND"\' DEBUG',
)
_MALFORMED = (
    "echo 'unbalanced",
    "if true; then",
    ") }",
    "cat <<EOF\nhere\nEOF",
    "trap 'echo trapped' EXIT",
    "return 3; break; continue",
    "",
    "# nothing",
)


@check()
async def shell_is_not_confused(arena: Arena) -> None:
    """Output that looks like a prompt or a marker ends no command; after malformed commands, the next one is exact."""
    sandbox = await arena.open()
    for n, noise in enumerate(_NOISE):
        told = await (await sandbox.session(f"noise-{n}")).run(f"{noise}\necho tail; (exit 3)", timeout_s=10)
        expect(told.stdout.endswith(b"tail\n") or "DEBUG" in noise, f"{noise!r} cut the output: {told.stdout!r}")
        expect((told.outcome, told.code) == ("nonzero", 3), f"after {noise!r}: {told.outcome}, code {told.code}")
    shell = await sandbox.session()
    for command in _MALFORMED:
        await shell.run(command, timeout_s=10)
        told = await shell.run("echo next; (exit 4)", timeout_s=10)
        expect((told.stdout, told.code) == (b"next\n", 4), f"after {command!r}: {told.stdout!r}, code {told.code}")
    raw = await shell.run('for i in $(seq 0 255); do printf "\\\\x$(printf %x $i)"; done')
    expect(raw.stdout == bytes(range(256)), "bytes of all values do not come out exact")


@check()
async def a_lost_shell_is_said(arena: Arena) -> None:
    """A shell that exits, or does not survive a timeout, is replaced, and the result reports it."""
    sandbox = await arena.open()
    shell = await sandbox.session()
    left = await shell.run("x=5; echo bye; exit 3", timeout_s=10)
    expect((left.stdout, left.code) == (b"bye\n", 3) and left.stderr, f"exit: {left}")
    expect((await shell.run("echo x=$x")).stdout == b"x=\n", "no fresh shell after exit")
    stuck = await shell.run("trap '' USR1 INT TERM HUP; while :; do :; done", timeout_s=0.3)
    expect(stuck.outcome == "timeout" and stuck.stderr, f"a deaf shell: {stuck.outcome}, {stuck.stderr!r}")
    expect((await shell.run("echo again")).stdout == b"again\n", "no fresh shell after a deaf one")


@check()
async def deleted_cwd(arena: Arena) -> None:
    """Commands in a deleted folder are results; the shell and other commands still work."""
    sandbox = await arena.open()
    shell = await sandbox.session()
    await shell.run("mkdir /tmp/d; cd /tmp/d; rmdir /tmp/d")
    expect((await shell.run("echo here", timeout_s=10)).stdout == b"here\n", "the shell is lost with its folder")
    expect((await shell.run("cd /tmp; pwd")).stdout == b"/tmp\n", "the shell cannot leave the deleted folder")
    expect((await sandbox.exec("pwd", cwd="/tmp/d")).outcome == "nonzero", "exec in a deleted folder")
    await sandbox.exec('rm -rf "$PWD"/* ; rmdir "$PWD"')
    expect((await sandbox.exec("echo on", cwd="/tmp")).stdout == b"on\n", "the sandbox is lost with its workdir")


@check()
async def cancel_in_a_session(arena: Arena) -> None:
    """A cancelled command of a shell is killed; the shell survives with its variables."""
    sandbox = await arena.open()
    shell = await sandbox.session()
    await shell.run("x=5")
    task = asyncio.create_task(shell.run("sleep 62002"))
    for _ in range(200):
        if await alive(sandbox, "62002"):
            break
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    expect((await shell.run("echo $x", timeout_s=20)).stdout == b"5\n", "the shell did not survive")
    expect(await gone(sandbox, "62002"), "the command runs on")


@check()
async def kernel_keeps_state(arena: Arena) -> None:
    """A Python kernel keeps variables, shows values and tracebacks, and survives an error."""
    kernel = await (await arena.open()).python()
    first = await kernel.run("import sys\nx = 3\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    expect((first.outcome, first.output, first.value) == ("ok", "out\nerr\n", "4"), f"it told {first}")
    failed = await kernel.run("def f():\n    return x / 0\nf()")
    expect(failed.outcome == "error" and "ZeroDivisionError" in (failed.traceback or ""), f"an error told {failed}")
    for code in ("1 +", "exit(3)", "input()", "raise KeyboardInterrupt"):
        expect((await kernel.run(code)).outcome == "error", f"{code} is no error")
    expect((await kernel.run("x")).value == "3", "its variables are lost")


@check()
async def kernel_survives_timeouts(arena: Arena) -> None:
    """A cell that times out loses no variables; a kernel that ignores the interrupt is replaced, and the result reports
    it.
    """
    sandbox = await arena.open()
    kernel = await sandbox.python()
    await kernel.run("x = 3")
    slow = await kernel.run("print('on')\nimport time\ntime.sleep(60)", timeout_s=0.4)
    expect((slow.outcome, slow.output) == ("timeout", "on\n"), f"a slow cell told {slow}")
    expect((await kernel.run("x")).value == "3", "its variables are lost")
    child = await kernel.run("import subprocess; subprocess.run(['sleep', '62003'])", timeout_s=0.4)
    expect(child.outcome == "timeout" and await gone(sandbox, "62003"), "a child of a cell runs on")
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    stuck = await kernel.run(deaf, timeout_s=0.3)
    expect(stuck.outcome == "timeout" and stuck.note, f"a deaf cell told {stuck}")
    died = await kernel.run("import os; os._exit(4)")
    expect(died.outcome == "died" and died.note, f"a cell that ends the kernel told {died}")
    expect((await kernel.run("1")).value == "1", "there is no fresh kernel")
