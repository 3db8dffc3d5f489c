"""The built-in tools over a real sandbox."""

from __future__ import annotations

import pytest

from agentrl.sandbox.namespace import NamespaceSandbox
from agentrl.task import Task
from agentrl.tools.base import toolbox
from agentrl.tools.python import Python
from agentrl.tools.shell import Shell

TASK = Task.of("t", "do")


async def test_shell(sandbox: NamespaceSandbox) -> None:
    tool = Shell(timeout_s=0.5, output_limit=40)
    await tool.open(TASK, sandbox)
    call = toolbox([tool])["shell"].call
    assert (await call({"command": "cd /tmp; x=1; echo hi"})).text == "hi"
    assert (
        await call({"command": "echo $x; pwd; exit_code() { return 3; }; exit_code"})
    ).text == "1\n/tmp\n[exit code 3]"
    assert (await call({"command": "true"})).text == ""
    assert (await call({"command": "echo on; sleep 60"})).text.endswith("[timed out after 0.5 s and was ended]")
    assert "bytes dropped" in (await call({"command": "seq 1000"})).text
    assert tool.state_key() is None


async def test_python(sandbox: NamespaceSandbox) -> None:
    tool = Python(timeout_s=0.5, output_limit=40)
    await tool.open(TASK, sandbox)
    call = toolbox([tool])["python"].call
    assert (await call({"code": "x = 2\nprint('hi')\nx"})).text == "hi\n2"
    assert "NameError" in (await call({"code": "y"})).text
    assert (await call({"code": "while True: pass"})).text.endswith("[timed out after 0.5 s and was interrupted]")
    assert (await call({"code": "x"})).text == "2"


@pytest.mark.parametrize("tool", [Shell, Python])
def test_the_runner_waits_longer_than_the_sandbox(tool: type[Shell] | type[Python]) -> None:
    assert tool(timeout_s=5).timeout_s > 5
    assert tool.needs_sandbox
