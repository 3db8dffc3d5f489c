"""Patches of models, read and applied to texts: forms that are taken, and why others are refused."""

from __future__ import annotations

import pytest

from agentrl.tools.builtin import apply_patch
from agentrl.tools.builtin.apply_patch import ApplyPatch, _undone
from agentrl.tools.builtin.patch import Change, Hunk, apply, patched, read, read_patch
from agentrl.types.errors import ToolError
from tests.integrations.scripted import ScriptedSandbox, failed, said


def v4a(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def test_a_file_is_added_and_another_is_moved_and_changed() -> None:
    added, moved = read_patch(
        v4a("*** Add File: a.py", "+x = 1", "+", "*** Update File: b.py", "*** Move to: c.py", "@@", "-old", "+new")
    )
    assert (added.kind, added.path, added.hunks[0].new) == ("add", "a.py", ["x = 1", ""])
    assert (moved.kind, moved.path, moved.moved) == ("update", "b.py", "c.py")
    assert patched(moved, "old\n") == "new\n"


def test_an_empty_line_without_its_mark_is_context() -> None:
    (change,) = read_patch(v4a("*** Update File: a", "@@", " one", "", "-two", "+2"))
    assert patched(change, "one\n\ntwo\n") == "one\n\n2\n"


def test_lines_that_replace_none_stand_behind_their_anchor_or_at_the_end() -> None:
    anchored = v4a("*** Update File: a", "@@ def f():", "+    x = 1")
    assert patched(read_patch(anchored)[0], "def f():\n    pass\n") == "def f():\n    x = 1\n    pass\n"
    (last,) = read_patch(v4a("*** Update File: a", "@@ def f():", "+# end", "*** End of File"))
    assert patched(last, "def f():\n    pass\n") == "def f():\n    pass\n# end\n"


def test_git_names_files_that_come_and_go_by_dev_null() -> None:
    added, deleted, moved = read_patch(
        "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "--- a/one.py\n+++ b/two.py\n@@ -1 +1 @@\n-x\n+y\n"
    )
    assert (added.kind, added.path, deleted.kind, deleted.path) == ("add", "new.py", "delete", "old.py")
    assert (moved.kind, moved.path, moved.moved) == ("update", "one.py", "two.py")


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("hello", "this is no patch: begin with"),
        (v4a(), "the patch changes no file"),
        (v4a(f"*** Delete File: {'a' * 5000}"), "a path of the patch has more than 4096 characters"),
        (v4a("*** Add File: a", "+x", f"*** Update File: b\n*** Move to: {'a' * 5000}"), "more than 4096 characters"),
        (v4a("*** Add File: a", "x"), "line 3 of the patch: lines of an added file begin with"),
        (v4a("*** Update File: a", "@@", "x"), "line 4 of the patch must begin with a space"),
        (v4a("*** Update File: a"), "the patch says nothing about a: give hunks"),
        (v4a("+x"), "line 2 of the patch stands under no file"),
        ("*** Begin Patch\n*** Delete File: a", "the patch does not end"),
    ],
)
def test_a_patch_that_cannot_be_read_is_refused_with_its_line(patch: str, why: str) -> None:
    assert why in read(patch)["refused"]


def test_a_patch_is_read_and_applied_as_json() -> None:
    (change,) = read(v4a("*** Update File: a", "@@", "-x", "+y"))["changes"]
    assert apply(change, "x\n") == {"text": "y\n"}
    assert "hunk 1 of 1 in a does not apply: these lines are not in the file:\nx" in apply(change, "z\n")["refused"]


# --- the tool, on a sandbox in memory ---------------------------------------------------------------------------------


def a_tool(**answers: str) -> ApplyPatch:
    held = ApplyPatch()
    held.sandbox = ScriptedSandbox({part: said(text) for part, text in answers.items()})  # type: ignore[assignment]
    return held


async def test_a_move_to_the_same_place_is_no_move() -> None:
    held, change = a_tool(dirname="/app/a.py\n"), Change("update", "a.py", [Hunk()], moved="./a.py")
    await held._refuse_collisions([change])
    assert change.moved is None


async def test_a_file_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ToolError, match=r"names b.py twice \(as a.py\)"):
        await a_tool(stat="inode 1:2")._refuse_collisions([Change("update", "a.py"), Change("update", "b.py")])


async def test_a_file_that_cannot_be_removed_is_named() -> None:
    held = a_tool()
    held.sandbox.answers["rm -- a.py"] = failed(1, "rm: busy")  # type: ignore[attr-defined]
    with pytest.raises(ToolError, match="a.py cannot be removed: rm: busy"):
        await held._remove("a.py")


async def test_a_file_that_is_there_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    held = a_tool()

    async def mode_of(path: str) -> int | None:
        return 0o644 if path == "there.py" else None

    monkeypatch.setattr(held._files, "mode_of", mode_of)
    with pytest.raises(ToolError, match="there.py exists already"):
        await held._step(Change("add", "there.py", [Hunk(lines=[("+", "x")])]))
    step = await held._step(Change("add", "new.py", [Hunk(lines=[("+", "x")])]))
    assert (step.new, step.told) == ("x\n", "new.py added")


async def test_what_cannot_be_undone_is_told_and_the_rest_is_undone() -> None:
    undone = []

    async def back(name: str) -> None:
        undone.append(name)
        if name == "full":
            raise ToolError("full: no space")

    held = [lambda name=name: back(name) for name in ("first", "full", "last")]
    assert await _undone(held) == ["full: no space"]
    assert undone == ["last", "full", "first"]
    assert apply_patch.NOTHING == "Nothing was changed."
