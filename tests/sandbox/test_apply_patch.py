"""The `apply_patch` tool: texts, and files of a real sandbox."""

from __future__ import annotations

import asyncio
import difflib
import random

import pytest

from agentrl.sandbox.namespace.backend import NamespaceSandbox
from agentrl.tools.builtin.apply_patch import ApplyPatch
from agentrl.tools.builtin.patch import patched, read_patch
from agentrl.tools.methods import toolbox
from agentrl.types.errors import ToolError
from agentrl.types.task import Task

SOURCE = "class A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n        return 1\n"


def applied(patch: str, text: str = SOURCE) -> str:
    [change] = read_patch(patch)
    return patched(change, text)


def v4a(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", "*** Update File: m.py", *lines, "*** End Patch"])


def test_a_hunk_stands_behind_its_anchors() -> None:
    changed = applied(v4a("@@ class B:", "@@     def f(self):", "-        return 1", "+        return 2"))
    assert changed == SOURCE.replace("return 1", "return 2").replace("return 2", "return 1", 1)
    assert applied(v4a("@@", "-        return 1", "+        return 2", "*** End of File")) == changed
    assert applied(v4a(" class A:", "-  def f(self):", "+    def g(self):")).startswith("class A:\n    def g(self):\n")


def test_unified_diffs_of_any_change_apply() -> None:
    rng = random.Random(0)
    for _ in range(200):
        old = [f"{rng.randint(0, 5)}\n" for _ in range(rng.randint(1, 30))]
        new = list(old)
        for _ in range(rng.randint(1, 4)):
            at = rng.randint(0, len(new))
            new[at : at + rng.randint(0, 2)] = [f"new {rng.random()}\n"] * rng.randint(0, 2)
        if old != new and new:
            diff = "".join(difflib.unified_diff(old, new, "a/m.py", "b/m.py", n=rng.randint(0, 3)))
            assert applied(diff, "".join(old)) == "".join(new), diff


def test_line_ends_stay_as_they_are() -> None:
    assert applied(v4a("-b", "+c"), "a\r\nb\r\n") == "a\r\nc\r\n"
    assert applied(v4a("-b", "+c"), "a\nb") == "a\nc"
    assert applied(v4a("-b"), "b\n") == ""


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("please change it", "this is no patch"),
        ("*** Begin Patch\n*** End Patch", "changes no file"),
        ("*** Begin Patch\n*** Update File: m.py\n-a", r"does not end: its last line must be '\*\*\* End Patch'"),
        ("*** Begin Patch\n+a\n*** End Patch", "line 2 of the patch stands under no file"),
        ("*** Begin Patch\n*** Add File: m.py\na\n*** End Patch", "line 3 of the patch: lines of an added"),
        (v4a("return 1"), "line 3 of the patch must begin with a space"),
        (v4a(), "says nothing about m.py"),
        (v4a("@@ class C:", "-x"), "hunk 1 of 1 in m.py does not apply: no line after line 0 is 'class C:'"),
        (v4a(" class A:", "+    x = 1", "@@", "-nothing"), "hunk 2 of 2 in m.py does not apply: these lines"),
        (v4a(" class B:", "-    def g(self):"), "its first 1 of 2 lines are at line 6, but then the file reads"),
    ],
)  # fmt: skip
def test_the_model_is_told_what_does_not_apply(patch: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        applied(patch)


@pytest.mark.slow
async def test_files_of_a_sandbox_change_all_or_not_at_all(sandbox: NamespaceSandbox) -> None:
    tool = ApplyPatch()
    await tool.open(Task.of("t", "do"), sandbox)
    call = toolbox([tool])["apply_patch"].call
    await sandbox.write("a.sh", "echo 1\n", mode=0o755)
    await sandbox.write("b.txt", "gone\n")
    head = "*** Begin Patch\n*** Update File: a.sh\n*** Move to: bin/c.sh\n-echo 1\n+echo 2\n"
    head += "*** Add File: new/d.txt\n+d\n"
    with pytest.raises(ToolError, match=r"b\.txt does not apply"):
        await call({"patch": f"{head}*** Update File: b.txt\n-other\n*** End Patch"})
    assert [entry.name for entry in await sandbox.list()] == ["a.sh", "b.txt"]
    told = await call({"patch": f"{head}*** Delete File: b.txt\n*** End Patch"})
    assert told.text == "a.sh changed, now bin/c.sh\nnew/d.txt added\nb.txt deleted"
    assert (await sandbox.exec("./bin/c.sh; cat new/d.txt; ls")).text.split() == ["2", "d", "bin", "new"]
    for path, why in (("no.py", "no such file"), ("new", "folder")):
        with pytest.raises(ToolError, match=why):
            await call({"patch": f"*** Begin Patch\n*** Update File: {path}\n-x\n*** End Patch"})


def files_of(patch: str) -> dict[str, str]:
    texts = {"a.py": "one\ntwo\nthree\n", "b.py": "x\ny\n", "q.sql": "-- drop\nselect 1;\n"}
    return {change.moved or change.path: patched(change, texts[change.path]) for change in read_patch(patch)}


A = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n"
B = "--- a/b.py\n+++ b/b.py\n@@ -1,2 +1,2 @@\n-x\n+X\n y\n"
BOTH = {"a.py": "one\nTWO\nthree\n", "b.py": "X\ny\n"}


PNG = "diff --git a/i.png b/i.png\nBinary files a/i.png and b/i.png differ\n"
MODE = "diff --git a/b.py b/b.py\nold mode 100644\nnew mode 100755\n"
RENAME = "diff --git a/b.py b/c.py\nsimilarity index 90%\nrename from b.py\nrename to c.py\n"
SQL = "--- a/q.sql\n+++ b/q.sql\n"


@pytest.mark.parametrize(
    ("patch", "files"),
    [
        (f"{A}\n{B}", BOTH),
        (f"{A}\n\n{B}\n", BOTH),
        (f"diff --git a/a.py b/a.py\nindex 1..2 100644\n{A}{MODE}{B}", BOTH),
        (f"{A}{PNG}{B}", BOTH),
        (f"{A}{RENAME}", {"c.py": "x\ny\n", "a.py": BOTH["a.py"]}),
        (f"{RENAME}index 1..2\n{B.replace('b/b.py', 'b/c.py')}", {"c.py": "X\ny\n"}),
        (f"{A}-- \n2.39.0\n", {"a.py": BOTH["a.py"]}),
        (f"{SQL}@@ -1,2 +1,2 @@\n--- drop\n+++ drop\n select 1;\n", {"q.sql": "++ drop\nselect 1;\n"}),
        (
            f"{SQL}@@ -1 +1 @@\n--- drop\n+++ drop\n@@ -2 +2 @@\n-select 1;\n+select 2;",
            {"q.sql": "++ drop\nselect 2;\n"},
        ),
        # Counts that are wrong, or missing.
        (A.replace("-1,2 +1,2", "-1,9 +1,9") + B, BOTH),
        (A.replace("-1,2 +1,2", "-1,1 +1,1") + B, BOTH),
        (A.replace("@@ -1,2 +1,2 @@", "@@") + f"\n{B}", BOTH),
    ],
)
def test_what_git_writes_applies(patch: str, files: dict[str, str]) -> None:
    assert files_of(patch) == files


def v4a_of(*parts: str) -> dict[str, str]:
    return {"patch": "\n".join(["*** Begin Patch", *parts, "*** End Patch"])}


MOVED = "*** Update File: b.py\n*** Move to: c.py\n@@\n-x\n+moved"
ONE = "*** Update File: a.py\n@@\n-one\n+ONE"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([ONE, "*** Update File: ./a.py\n@@\n-three\n+THREE"], "names ./a.py twice"),
        ([ONE, "*** Update File: /work/a.py\n@@\n-three\n+THREE"], "twice"),
        ([ONE, "*** Update File: d/../a.py\n@@\n-three\n+THREE"], "twice"),
        ([ONE, "*** Update File: link.py\n@@\n-three\n+THREE"], "names link.py twice"),
        ([MOVED, "*** Add File: c.py\n+added"], "names c.py twice"),
        ([MOVED, "*** Update File: a.py\n*** Move to: ./c.py\n-one\n+1"], "twice"),
        (["*** Add File: d/n.py\n+1", "*** Add File: same/n.py\n+2"], "names same/n.py twice"),
        ([MOVED, "*** Add File: gone/../c.py\n+2"], "twice"),
        ([ONE, "*** Delete File: gone.py"], "no such file or directory\nNothing was changed"),
        ([ONE, "*** Add File: a.py/x.py\n+hi"], "as a file"),
        ([ONE, "*** Add File: b.py/x.py\n+hi"], "Nothing was changed"),
        ([ONE, "*** Add File: new/deep/y.py\n+hi", "*** Add File: /proc/x.py\n+hi"], "Nothing was changed"),
        ([ONE, "*** Delete File: b.py", "*** Add File: /proc/x.py\n+hi"], "Nothing was changed"),
        ([ONE, "*** Add File: big.py\n+" + "x" * 300], "at most 200"),
        ([ONE, "*** Update File: b.py\n@@\n-x\n+" + "x" * 300], "at most 200"),
    ],
)  # fmt: skip
async def test_a_patch_that_cannot_be_carried_out_changes_nothing(
    sandbox: NamespaceSandbox, parts: list[str], why: str
) -> None:
    tool = ApplyPatch(file_limit=200)
    await tool.open(Task.of("t", "do"), sandbox)
    await sandbox.exec(
        "printf 'one\\ntwo\\nthree\\n' > a.py; printf 'x\\n' > b.py; mkdir d; ln -s d same; ln -s a.py link.py"
    )
    before = (await sandbox.exec("find . | sort; cat a.py b.py")).text
    with pytest.raises(ToolError, match=why) as refused:
        await toolbox([tool])["apply_patch"].call(v4a_of(*parts))
    assert str(refused.value).endswith("Nothing was changed.")
    assert (await sandbox.exec("find . | sort; cat a.py b.py")).text == before


@pytest.mark.slow
async def test_a_step_that_fails_late_is_undone(sandbox: NamespaceSandbox) -> None:
    tool = ApplyPatch()
    await tool.open(Task.of("t", "do"), sandbox)
    await sandbox.exec("printf 'one\\n' > a.py; chmod 755 a.py; printf 'x\\n' > b.py; printf 'g\\n' > g.py")
    write = tool._files.write

    async def failing(path: str, text: str, mode: int) -> None:
        if path == "b.py" and text == "y\n":
            raise ToolError("b.py: no space left")
        await write(path, text, mode)

    tool._files.write = failing  # type: ignore[method-assign]
    parts = [ONE, "*** Add File: n/m.py\n+hi", "*** Delete File: g.py", "*** Update File: b.py\n@@\n-x\n+y"]
    with pytest.raises(ToolError, match="no space left\nNothing was changed"):
        await toolbox([tool])["apply_patch"].call(v4a_of(*parts))
    assert (await sandbox.exec("ls; cat a.py b.py g.py; stat -c %a a.py")).text.split() == [
        "a.py", "b.py", "g.py", "one", "x", "g", "755",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cut_at", ["n/m.py", "a.py", "b.py", "rm g.py"])
async def test_a_patch_that_is_cut_off_is_undone(sandbox: NamespaceSandbox, cut_at: str) -> None:
    """By its time limit or by that of the episode, before or after the step that hangs has written."""
    tool = ApplyPatch()
    await tool.open(Task.of("t", "do"), sandbox)
    await sandbox.exec("printf 'one\\n' > a.py; printf 'x\\n' > b.py; printf 'g\\n' > g.py")
    before = (await sandbox.exec("find . | sort; cat a.py b.py g.py")).text
    write, remove, reached = tool._files.write, tool._remove, asyncio.Event()

    async def hanging(path: str) -> None:
        if path == cut_at and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()

    async def slow_write(path: str, text: str, mode: int) -> None:
        await write(path, text, mode)
        await hanging(path)

    async def slow_remove(path: str) -> None:
        await remove(path)
        await hanging(f"rm {path}")

    tool._files.write, tool._remove = slow_write, slow_remove  # type: ignore[method-assign]
    parts = [ONE, "*** Add File: n/m.py\n+hi", "*** Delete File: g.py", "*** Update File: b.py\n@@\n-x\n+y"]
    call = asyncio.create_task(toolbox([tool])["apply_patch"].call(v4a_of(*parts)))
    await reached.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await sandbox.exec("find . | sort; cat a.py b.py g.py")).text == before
