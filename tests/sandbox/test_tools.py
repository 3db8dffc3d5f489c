"""The built-in tools over a real sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.rollouts.states import files as hashed
from agentrl.rollouts.states.files import files
from agentrl.rollouts.states.registry import Moment
from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.tools.base import Tool
from agentrl.tools.builtin.files import Files
from agentrl.tools.builtin.python import Python
from agentrl.tools.builtin.shell import Shell
from agentrl.tools.methods import toolbox
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.sandbox import SandboxSpec
from agentrl.types.task import Task

pytestmark = pytest.mark.slow

TASK = Task.of("t", "do")


async def test_shell(sandbox: NamespaceSandbox) -> None:
    tool = Shell(output_limit=40)
    await tool.open(TASK, sandbox)
    call = toolbox([tool])["shell"].call
    assert (await call({"command": "cd /tmp; x=1; echo hi"})).text == "hi"
    assert (
        await call({"command": "echo $x; pwd; exit_code() { return 3; }; exit_code"})
    ).text == "1\n/tmp\n[exit code 3]"
    assert (await call({"command": "true"})).text == ""
    tool.command_s = 0.5
    assert (await call({"command": "echo on; sleep 1000"})).text.endswith("[timed out after 0.5 s and was ended]")
    tool.command_s = 60.0
    assert "bytes dropped" in (await call({"command": "seq 1000"})).text
    assert tool.state_key() is None
    assert not tool.knows_state


async def test_what_was_run_and_seen_can_be_the_state_of_a_shell(backend: NamespaceBackend) -> None:
    keys = []
    for commands in (["ls", "cat a"], ["ls", "cat a"], ["ls"], ["ls", "echo b > a", "cat a"]):
        tool = Shell(state="history")
        assert tool.knows_state
        await tool.open(TASK, await backend.create(SandboxSpec(), label="test"))
        seen = [tool.state_key()]
        for command in commands:
            await toolbox([tool])["shell"].call({"command": command})
            seen.append(tool.state_key())
        keys.append(seen)
    same, again, shorter, other = keys
    assert same == again
    assert same[:2] == shorter == other[:2]
    assert len({*same, *other}) == 5


async def test_the_files_can_be_the_state(backend: NamespaceBackend) -> None:
    """Whatever was run in between, and in every sandbox alike."""

    async def after(*commands: str, **settings: Any) -> str | None:
        spec = SandboxSpec(files={"a": "1", "data/b": "2"}, writable=("/data",))
        box = await backend.create(spec, label="test")
        for command in commands:
            assert (await box.exec(command)).ok, command
        return await files(Moment(TASK, sandbox=box), **settings)

    start = await after()
    assert start is not None
    assert start == await after("cat a; ls /tmp", "echo 3 > a", "printf 1 > a"), "it was changed back"
    assert start == await after("mkdir __pycache__ .git; touch __pycache__/x .git/y"), "caches are no state"
    assert start == await after("touch a; chmod a+x a"), "nor times and modes"
    changes = {
        await after(*commands)
        for commands in (
            ["echo 3 > a"],
            ["mv a c"],
            ["rm a"],
            ["mkdir d"],
            ["ln -s a d"],
            ["ln -s b d"],
            ["echo > 'd e'"],
        )
    }
    assert len({*changes, start}) == 8
    large = ["head -c 3000000 /dev/zero > z"]
    assert await after(*large) == await after(*large, "printf x | dd of=z conv=notrunc"), "of a large file, its size"
    assert await after(*large) != await after(*large, "echo >> z")
    assert await after("echo 1 > /data/x") == start
    assert await after("echo 1 > /data/x", folder="/data") != await after(folder="/data")
    assert await after(timeout_s=1e-4) is None, "not hashed in time"


async def test_files_that_cannot_be_hashed_are_refused(sandbox: NamespaceSandbox, monkeypatch: Any) -> None:
    monkeypatch.setattr(hashed, "_COMMAND", "exec nosuchprogram")
    with pytest.raises(RecipeError, match="agent.state: the files of the sandbox cannot be hashed"):
        await files(Moment(TASK, sandbox=sandbox))
    with pytest.raises(RecipeError, match="the episode has none"):
        await files(Moment(TASK))


async def test_python(sandbox: NamespaceSandbox) -> None:
    tool = Python(output_limit=40)
    await tool.open(TASK, sandbox)
    call = toolbox([tool])["python"].call
    assert (await call({"code": "x = 2\nprint('hi')\nx"})).text == "hi\n2"
    assert "NameError" in (await call({"code": "y"})).text
    tool.cell_s = 0.5
    assert (await call({"code": "while True: pass"})).text.endswith("[timed out after 0.5 s and was interrupted]")
    tool.cell_s = 60.0
    assert (await call({"code": "x"})).text == "2"


@pytest.mark.parametrize(
    ("name", "arguments", "which"),
    [
        ("shell", {"command": "echo \0"}, "command"),
        ("python", {"code": "x = '\0'"}, "code"),
        ("view_file", {"path": "a\0b"}, "path"),
        ("view_file", {"path": "\ud800"}, "path"),
        ("create_file", {"path": "a\0b", "content": "x"}, "path"),
        ("replace_in_file", {"path": "a\0b", "old": "x", "new": "y"}, "path"),
        ("insert_in_file", {"path": "a\0b", "line": 0, "text": "y"}, "path"),
        ("search_files", {"pattern": "\0"}, "pattern"),
        ("search_files", {"pattern": "x", "path": "\ud800"}, "path"),
    ],
)
async def test_what_no_program_takes_is_told_by_argument(
    sandbox: NamespaceSandbox, name: str, arguments: dict[str, Any], which: str
) -> None:
    tools: list[Tool] = [Shell(), Python(), Files()]
    for tool in tools:
        await tool.open(TASK, sandbox)
    with pytest.raises(ToolError, match=f"argument '{which}': .*(NUL|nul character|surrogate)"):
        await toolbox(tools)[name].call(arguments)


async def test_content_may_be_any_text(sandbox: NamespaceSandbox) -> None:
    tool = Files()
    await tool.open(TASK, sandbox)
    await toolbox([tool])["create_file"].call({"path": "f", "content": "a\0b\ud800"})
    assert await sandbox.read("f") == b"a\0b?"


@pytest.mark.parametrize("tool", [Shell, Python])
def test_the_runner_waits_longer_than_the_sandbox(tool: type[Shell] | type[Python]) -> None:
    assert tool(timeout_s=5).timeout_s > 5
    assert tool.needs_sandbox
