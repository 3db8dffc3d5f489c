"""The `files` tool over a real sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from agentrl.sandbox.namespace.backend import NamespaceSandbox
from agentrl.tools.builtin import files
from agentrl.tools.builtin.files import Files
from agentrl.tools.methods import toolbox
from agentrl.types.errors import ToolError
from agentrl.types.task import Task
from tests.beat import beside_the_loop

pytestmark = pytest.mark.slow

Call = Callable[..., Awaitable[str]]
SOURCE = "def a():\n    return 1\n\n\ndef b():\n    return 1\n"


@pytest.fixture
async def call(sandbox: NamespaceSandbox) -> Call:
    tool = Files(output_limit=400, file_limit=5_000)
    await tool.open(Task.of("t", "do"), sandbox)
    box = toolbox([tool])

    async def call(name: str, **arguments: Any) -> str:
        return (await box[name].call(arguments)).text

    await sandbox.write("src/m.py", SOURCE)
    return call


async def test_view(call: Call, sandbox: NamespaceSandbox) -> None:
    assert await call("view_file", path="src/m.py", first=5, last=6) == "     5\tdef b():\n     6\t    return 1"
    assert (await call("view_file", path="src/m.py")).startswith("     1\tdef a():\n")
    assert await call("view_file", path="src") == f"{len(SOURCE):>10} m.py"
    assert await call("view_file", path="/work") == " " * 11 + "src/"
    with pytest.raises(ToolError, match="lines 7 to the end do not exist: src/m.py has 6 lines"):
        await call("view_file", path="src/m.py", first=7)
    with pytest.raises(ToolError, match=r"no\.py: no such file"):
        await call("view_file", path="no.py")
    await sandbox.write("binary", b"\xff\x00")
    with pytest.raises(ToolError, match="no text file"):
        await call("view_file", path="binary")
    await sandbox.write("large", "x" * 5_001)
    with pytest.raises(ToolError, match="large"):
        await call("view_file", path="large")
    await sandbox.write("empty", "")
    assert await call("view_file", path="empty") == "[empty is empty]"


async def test_a_long_output_keeps_head_and_tail_and_says_what_is_missing(
    call: Call, sandbox: NamespaceSandbox
) -> None:
    await sandbox.write("long", "".join(f"line {n}\n" for n in range(200)))
    shown = await call("view_file", path="long")
    head, _, rest = shown.partition("[... ")
    dropped, _, tail = rest.partition(" characters dropped ...]\n")
    whole = "\n".join(f"{n + 1:6}\tline {n}" for n in range(200))
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) + int(dropped) == len(whole)
    assert len(shown) < 450


async def test_create(call: Call, sandbox: NamespaceSandbox) -> None:
    assert await call("create_file", path="new/deep/x.txt", content="a\nb\n") == "[new/deep/x.txt written: 2 lines]"
    assert await sandbox.read("new/deep/x.txt") == b"a\nb\n"
    with pytest.raises(ToolError, match="exists already"):
        await call("create_file", path="new/deep/x.txt", content="c")
    with pytest.raises(ToolError, match="/usr/x: read-only file system"):
        await call("create_file", path="/usr/x", content="c")
    with pytest.raises(ToolError, match="at most 5000"):
        await call("create_file", path="y", content="c" * 5_001)
    assert await sandbox.read("new/deep/x.txt") == b"a\nb\n"


async def test_replace(call: Call, sandbox: NamespaceSandbox) -> None:
    await sandbox.write("run.sh", "echo one\necho two\n", mode=0o755)
    shown = await call("replace_in_file", path="run.sh", old="one\n", new="1\n\n")
    assert shown == "[run.sh changed; it now reads]\n     1\techo 1\n     2\t\n     3\techo two"
    assert (await sandbox.exec("./run.sh")).text == "1\ntwo\n"


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("return 1", r"occurs 2 times in src/m.py, at lines 2, 6; give more lines"),
        ("def b():\n  return 1", r"only in white space from:\n     5\tdef b\(\):\n     6\t    return 1"),
        ("def bb():", r"nearest line is:\n     \d\tdef"),
        ("nothing of the kind", "view it first"),
        ("", "`old` is empty"),
    ],
)
async def test_a_replacement_that_does_not_fit_teaches(
    call: Call, sandbox: NamespaceSandbox, old: str, says: str
) -> None:
    with pytest.raises(ToolError, match=says):
        await call("replace_in_file", path="src/m.py", old=old, new="x")
    assert (await sandbox.read("src/m.py")).decode() == SOURCE


async def test_insert(call: Call, sandbox: NamespaceSandbox) -> None:
    await sandbox.write("list", "a\nb")
    await call("insert_in_file", path="list", line=2, text="c")
    await call("insert_in_file", path="list", line=0, text="top\n")
    assert await sandbox.read("list") == b"top\na\nb\nc\n"
    with pytest.raises(ToolError, match="line 9 does not exist: list has 4 lines"):
        await call("insert_in_file", path="list", line=9, text="x")
    with pytest.raises(ToolError, match="is a folder"):
        await call("insert_in_file", path="src", line=0, text="x")


async def test_search(call: Call, sandbox: NamespaceSandbox) -> None:
    await sandbox.write("src/.git/x", "return")
    assert await call("search_files", pattern="return") == "./src/m.py:2:    return 1\n./src/m.py:6:    return 1"
    assert await call("search_files", pattern="^def [b]", path="src", regex=True) == "src/m.py:5:def b():"
    assert await call("search_files", pattern="a()", path="src/m.py") == "src/m.py:1:def a():"
    assert await call("search_files", pattern="-e") == "[no line contains '-e']"
    with pytest.raises(ToolError, match="[Uu]nmatched"):
        await call("search_files", pattern="(", regex=True)
    with pytest.raises(ToolError, match="No such file"):
        await call("search_files", pattern="x", path="nowhere")


async def test_a_search_that_takes_too_long_is_ended(sandbox: NamespaceSandbox) -> None:
    tool = Files(timeout_s=0.02)
    await tool.open(Task.of("t", "do"), sandbox)
    await sandbox.write("f", "a" * 3000)
    with pytest.raises(ToolError, match=r"longer than 0\.02 s"):
        await tool.search_files(r"(a+)(a+)\2\1[^a]", "f", regex=True)  # 3000 ** 3 ways


TRAPS = """
import os
os.mkdir("deep")
os.mkfifo("pipe")
os.symlink("/dev/zero", "endless")
os.symlink("loop", "loop")
os.truncate(os.open("hole", os.O_CREAT | os.O_WRONLY), 1 << 40)
os.chdir("deep")
for _ in range(10_000):
    os.mkdir("d")
    os.chdir("d")
"""


async def test_traps_are_observations_and_hold_up_nobody(call: Call, sandbox: NamespaceSandbox) -> None:
    assert (await sandbox.exec(["python3", "-c", TRAPS])).ok
    for path in ("pipe", "endless", "loop", "hole", "deep", "src/m.py/x", "n/" * 3000, "."):
        for name, arguments in (
            ("view_file", {}),
            ("replace_in_file", {"old": "a", "new": "b"}),
            ("insert_in_file", {"line": 0, "text": "x"}),
            ("search_files", {"pattern": "x"}),
            ("create_file", {"content": "x"}),
        ):
            with suppress(ToolError):
                assert len(await call(name, path=path, **arguments)) < 1000
    assert (await sandbox.health()).alive


async def test_a_text_that_occurs_very_often_is_told_at_once(sandbox: NamespaceSandbox) -> None:
    tool = Files()
    await tool.open(Task.of("t", "do"), sandbox)
    await sandbox.write("f", "a\n" * 500_000)
    with pytest.raises(ToolError, match=r"occurs 500000 times in f, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, \.\.\.;"):
        await toolbox([tool])["replace_in_file"].call({"path": "f", "old": "a", "new": "b"})


@pytest.mark.parametrize(("text", "old", "says"), [
    ("".join(f'{{"id": {k}, "text": "{k * 7919 % 10007} some words of row {k * 31 % 997}"}}\n' for k in range(14_000)),
     "some words that no row has, " * 300, "view it first"),
    ("x" * 1_000_000, "y" * 8_000, "view it first"),
    ("\n" * 1_000_000, "\n" * 400_000 + "x", "is not in"),
    ("a" * 1_000_000, "a", r"occurs 1000000 times in big, at lines 1, 1, .*\.\.\."),
    ("ab\n" * 300_000, "b\na", r"at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, \.\.\."),
    ("the nearest one is here\n" * 2 + "z\n" * 400_000, "the nearst one is hre", "nearest line is:\n     1\t"),
])  # fmt: skip
async def test_a_text_that_is_not_there_is_told_in_linear_work(
    sandbox: NamespaceSandbox, text: str, old: str, says: str
) -> None:
    """Quadratic work would outlast the test."""
    tool = Files()
    await tool.open(Task.of("t", "do"), sandbox)
    await sandbox.write("big", text)
    with nullcontext() if old in text else beside_the_loop(files, "_none"), pytest.raises(ToolError, match=says):
        await tool.replace_in_file("big", old, "new")
    with beside_the_loop(Files, "_view"):
        assert len(await tool.view_file("big")) <= 17_000


async def test_a_folder_of_very_many_names_is_not_listed(sandbox: NamespaceSandbox) -> None:
    tool = Files()
    await tool.open(Task.of("t", "do"), sandbox)
    assert (await sandbox.exec("mkdir many && cd many && seq 12000 | xargs touch")).ok
    with pytest.raises(ToolError, match="more than 10000 entries"):
        await tool.view_file("many")
