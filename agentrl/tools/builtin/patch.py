"""Parser and application of patches by coding models: the V4A form (`*** Begin Patch`) and unified diffs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentrl.types.errors import ToolError

_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_RANGE = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_RENAME = re.compile(r"rename from (.+)\nrename to (.+)\n(?:index .*\n)?+(?!--- )")
_GIT = (
    "diff ", "index ", "old mode", "new mode", "new file", "deleted file", "similarity ", "dissimilarity ", "rename ",
    "copy ", "Binary files ", "GIT binary",
)  # fmt: skip
"""Prefixes of git's lines between two files."""
_LOOSER: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip)
"""Comparisons of lines, in this order: exact, without trailing space, without surrounding space."""
_SHOWN = 6
_PATH_CHARS = 4096  # of a path, Linux's limit


@dataclass
class Hunk:
    """Hunk of a patch: removed, added and context lines.

    Attributes:
        anchors: lines before the hunk in the file, in order (V4A's `@@ def f():`).
        lines: pairs of a mark (" ", "-" or "+") and a line.
        first: first line by the unified diff, from 1; None: not given.
        at_end: True if the hunk is at the end of the file.
    """

    anchors: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    first: int | None = None
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        """Lines of the file before the patch."""
        return [line for mark, line in self.lines if mark != "+"]

    @property
    def new(self) -> list[str]:
        """Lines of the file after the patch."""
        return [line for mark, line in self.lines if mark != "-"]


@dataclass
class Change:
    """Changes of a patch to one file. An added file has one hunk. `moved`: its new path."""

    kind: Literal["add", "update", "delete"]
    path: str
    hunks: list[Hunk] = field(default_factory=list)
    moved: str | None = None


def read(text: str) -> dict[str, Any]:
    """Parses a patch, in a helper process: returns its `changes` as JSON, or the error as `refused`."""
    try:
        return {"changes": msgspec.to_builtins(read_patch(text))}
    except ToolError as error:
        return {"refused": str(error)}


def apply(change: dict[str, Any], text: str) -> dict[str, Any]:
    """Applies a change, in a helper process: returns the new `text` of the file, or the error as `refused`."""
    try:
        return {"text": patched(msgspec.convert(change, Change), text)}
    except ToolError as error:
        return {"refused": str(error)}


def read_patch(text: str) -> list[Change]:
    """Parses a patch into its changes, in order.

    Raises:
        ToolError: the patch is malformed; the message names the line.
    """
    lines = text.replace("\r\n", "\n").strip("\n").split("\n")
    if any(line.startswith("*** Begin Patch") for line in lines):
        changes = _v4a(lines)
    elif any(line.startswith(("--- ", "rename from ")) for line in lines):
        changes = _unified(lines)
    else:
        raise ToolError("this is no patch: begin with '*** Begin Patch', or give a unified diff with --- and +++ lines")
    if not changes:
        raise ToolError("the patch changes no file")
    for change in changes:
        if any(len(path) > _PATH_CHARS for path in (change.path, change.moved or "")):
            raise ToolError(f"a path of the patch has more than {_PATH_CHARS} characters")
        if change.kind == "update" and change.moved is None and not any(hunk.lines for hunk in change.hunks):
            raise ToolError(f"the patch says nothing about {change.path}: give hunks that begin with @@")
    return changes


def _v4a(lines: Sequence[str]) -> list[Change]:
    first = next(number for number, line in enumerate(lines) if line.startswith("*** Begin Patch"))
    changes: list[Change] = []
    for number, line in enumerate(lines[first + 1 :], first + 2):
        here = changes[-1] if changes else None
        if line.startswith("*** End Patch"):
            return changes
        if match := _FILE.fullmatch(line.rstrip()):
            kind, path = match[1].lower(), match[2].strip()
            changes.append(Change(kind, path, [Hunk()] if kind == "add" else []))  # type: ignore[arg-type]
        elif here is None or here.kind == "delete":
            raise ToolError(f"line {number} of the patch stands under no file: {line!r}")
        elif line.startswith("*** Move to: "):
            here.moved = line.removeprefix("*** Move to: ").strip()
        elif line.startswith("*** End of File"):
            if here.hunks:
                here.hunks[-1].at_end = True
        elif here.kind == "add":
            if not line.startswith("+"):
                raise ToolError(f"line {number} of the patch: lines of an added file begin with +, found {line!r}")
            here.hunks[0].lines.append(("+", line[1:]))
        elif line.startswith("@@"):
            if not here.hunks or here.hunks[-1].lines:
                here.hunks.append(Hunk())
            if anchor := line[2:].removesuffix("@@").strip():
                here.hunks[-1].anchors.append(anchor)
        else:
            if not here.hunks:
                here.hunks.append(Hunk())
            here.hunks[-1].lines.append(_marked(line, number))
    raise ToolError("the patch does not end: its last line must be '*** End Patch'")


def _unified(lines: Sequence[str]) -> list[Change]:
    """Parses a unified diff. Counts the lines of a hunk, so that `--- x` and `+++ x` may be changed lines.

    Models miscount: lines after the counted end that look like hunk lines still belong to the hunk.
    """
    renamed = _RENAME.finditer("\n".join([*lines, ""]))
    changes = [Change("update", old, moved=new) for old, new in (match.groups() for match in renamed)]
    left: list[int] | None = None  # remaining old and new lines of the hunk; None: no hunk
    blank = 0  # empty lines, of the hunk or after it
    for position, line in enumerate(lines):
        hunk = changes[-1].hunks[-1] if left is not None else None
        if _is_header(lines, position, left):
            changes.append(_of_header(line, lines[position + 1]))
            left, blank = None, 0
        elif line.startswith("@@") and changes:
            match = _RANGE.match(line)
            changes[-1].hunks.append(Hunk(first=int(match[1]) if match else None))
            left, blank = [int(match[2] or 1), int(match[3] or 1)] if match else [0, 0], 0
        elif hunk is None or left is None or line.startswith("\\"):
            continue  # git's notes about files, or "\ No newline at end of file"
        elif max(left) <= 0 and not line:
            blank += 1
        elif line.startswith(_GIT) or (max(left) <= 0 and line.rstrip() == "--"):
            left = None
        else:
            hunk.lines += [(" ", "")] * blank + [_marked(line, position + 1)]
            mark, blank = hunk.lines[-1][0], 0
            left = [left[0] - (mark != "+"), left[1] - (mark != "-")]
    return changes


def _is_header(lines: Sequence[str], position: int, left: Sequence[int] | None) -> bool:
    """Returns True if a line and the next are the paths of a file. `left`: remaining lines of the previous hunk."""
    pair = [*lines[position : position + 3], "", "", ""]
    if not (pair[0].startswith("--- ") and pair[1].startswith("+++ ")):
        return False
    if left is None or min(left) <= 0:
        return True
    return pair[2].startswith("@@") and list(left) != [1, 1]


def _of_header(old_line: str, new_line: str) -> Change:
    old, new = _path(old_line), _path(new_line)
    if old is None or new is None:
        return Change("delete" if new is None else "add", new or old or "")
    return Change("update", old, moved=new if new != old else None)


def _path(line: str) -> str | None:
    """Returns the path in a line `--- a/x` or `+++ b/x`; None for /dev/null."""
    path = line[4:].split("\t")[0].strip()
    if path == "/dev/null":
        return None
    return path[2:] if path.startswith(("a/", "b/")) else path


def _marked(line: str, number: int) -> tuple[str, str]:
    if not line:
        return " ", ""  # an empty line without its mark
    if line[0] not in " +-":
        raise ToolError(f"line {number} of the patch must begin with a space, + or -, found {line!r}")
    return line[0], line[1:]


def patched(change: Change, text: str) -> str:
    """Applies the hunks of a change to the text of a file.

    Each hunk is searched after the previous one; with a line number, the nearest match wins.

    Raises:
        ToolError: the lines of a hunk are not found; the message names the hunk and shows them.
    """
    ended = text.endswith("\n") or not text
    lines, done, position = text.removesuffix("\n").split("\n") if text else [], [], 0
    windows = "\r" if "\r\n" in text else ""
    for number, hunk in enumerate(change.hunks, 1):
        place = f"hunk {number} of {len(change.hunks)} in {change.path}"
        start = _behind(hunk.anchors, lines, position, place)
        at = _found(hunk, lines, start)
        if at is None:
            raise ToolError(f"{place} does not apply: {_why(hunk, lines, start)}")
        done += lines[position:at]
        kept = iter(lines[at : at + len(hunk.old)])
        for mark, line in hunk.lines:
            if mark == "+":
                done.append(line + windows)
            else:
                own = next(kept)
                done += [own] if mark == " " else []
        position = at + len(hunk.old)
    done += lines[position:]
    return "\n".join(done) + ("\n" if done and ended else "")


def _behind(anchors: Sequence[str], lines: Sequence[str], position: int, place: str) -> int:
    """Returns the line index after the last anchor."""
    for anchor in anchors:
        found = next((n for n in range(position, len(lines)) if lines[n].strip() == anchor), None)
        if found is None:
            raise ToolError(f"{place} does not apply: no line after line {position} is {anchor!r}")
        position = found + 1
    return position


def _found(hunk: Hunk, lines: Sequence[str], start: int) -> int | None:
    """Returns the line index of a hunk's old lines, at or after `start`; None if not found."""
    old = hunk.old
    if not old:
        if hunk.first is not None:
            return max(min(hunk.first, len(lines)), start)
        return start if hunk.anchors and not hunk.at_end else len(lines)
    places = range(start, len(lines) - len(old) + 1)
    near = hunk.first - 1 if hunk.first is not None else len(lines) if hunk.at_end else start
    for alike in _LOOSER:
        wanted, held = [alike(line) for line in old], [alike(line) for line in lines]
        hits = [place for place in places if held[place] == wanted[0] and held[place : place + len(old)] == wanted]
        if hits:
            return min(hits, key=lambda place: abs(place - near))
    return None


def _why(hunk: Hunk, lines: Sequence[str], start: int) -> str:
    old = hunk.old
    matched, at = 0, start
    for place in range(start, len(lines)):
        run = 0
        while run < len(old) and place + run < len(lines) and lines[place + run].strip() == old[run].strip():
            run += 1
        if run > matched:
            matched, at = run, place
    if matched:
        there = lines[at + matched] if at + matched < len(lines) else "[the end of the file]"
        return (
            f"its first {matched} of {len(old)} lines are at line {at + 1}, but then the file reads {there!r} "
            f"and the patch {old[matched]!r}"
        )
    shown = "\n".join(old[:_SHOWN])
    return f"these lines are not in the file{f' behind line {start}' if start else ''}:\n{shown}"
