"""The `files` tool: views, writes and edits text files in the sandbox."""

from __future__ import annotations

import asyncio
import difflib
import heapq
from collections.abc import Awaitable
from typing import TypeVar

from agentrl.tools.base import Tool, own, tool
from agentrl.tools.builtin.shell import GRACE_S
from agentrl.tools.words import Word
from agentrl.types.errors import ToolError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task

T = TypeVar("T")

_CONTEXT = 3
_TOLD = 10  # matches listed in an error
_ENTRIES = 10_000  # shown per folder
_COMPARED = 300  # characters compared per line
_CANDIDATES = 10  # lines compared closely
_SKIPPED = (".git", "node_modules", "__pycache__")


class Files(Tool):
    """Text files of the sandbox; relative paths start at the workdir.

    Every error tells the model the remedy. Writing preserves a file's mode.

    Args:
        timeout_s: timeout of one call.
        output_limit: maximum characters shown to the model per call: head and tail.
        file_limit: maximum bytes of a file that is opened or written.
    """

    needs_sandbox = keeps_files_alone = True

    def __init__(self, timeout_s: float = 30.0, output_limit: int = 16_000, file_limit: int = 1 << 20) -> None:
        self.search_s = timeout_s
        self.timeout_s = timeout_s + GRACE_S
        self.output_limit, self.file_limit = output_limit, file_limit

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Stores the episode's sandbox."""
        self.sandbox = own(sandbox)

    @tool
    async def view_file(self, path: Word, first: int = 1, last: int | None = None) -> str:
        """Show a text file with line numbers, or the entries of a folder.

        Args:
            path: a file or a folder.
            first: first line to show, from 1.
            last: last line to show; without it: the end.
        """
        try:
            text = await self.text_of(path)
        except IsADirectoryError:
            return await self._folder(path)
        return await asyncio.to_thread(self._view, text, path, first, last)

    def _view(self, text: str, path: str, first: int, last: int | None) -> str:
        lines = text.splitlines()
        if first < 1 or (last is not None and last < first) or first > max(len(lines), 1):
            raise ToolError(f"lines {first} to {last or 'the end'} do not exist: {path} has {len(lines)} lines")
        return self._trim(_numbered(lines, first, last) or f"[{path} is empty]")

    @tool
    async def create_file(self, path: Word, content: str) -> str:
        """Write a new file; folders that are missing are made. To change a file that exists, use replace_in_file.

        Args:
            path: the file; it must not exist.
            content: the whole text.
        """
        if await self.mode_of(path) is not None:
            raise ToolError(f"{path} exists already; change it with replace_in_file, or remove it first")
        await self.write(path, content, 0o644)
        return f"[{path} written: {_count(len(content.splitlines()), 'line')}]"

    @tool
    async def replace_in_file(self, path: Word, old: str, new: str) -> str:
        """Replace a piece of text that occurs exactly once in a file.

        Args:
            path: the file.
            old: the text as it stands in the file, white space included, without line numbers; a few lines around
                the change make it unique.
            new: what to put there; empty removes.
        """
        text = await self.text_of(path, folder_ok=False)
        if not old:
            raise ToolError("`old` is empty; give the text that is to be replaced, or use insert_in_file")
        if (count := text.count(old)) != 1:
            raise ToolError(_many(text, old, path) if count else await asyncio.to_thread(_none, text, old, path))
        line = text[: text.index(old)].count("\n") + 1
        return await self._change(path, text.replace(old, new), line, line + new.count("\n"))

    @tool
    async def insert_in_file(self, path: Word, line: int, text: str) -> str:
        """Insert whole lines into a file.

        Args:
            path: the file.
            line: insert after this line; 0 inserts at the top.
            text: the lines.
        """
        lines = (await self.text_of(path, folder_ok=False)).splitlines(keepends=True)
        if not 0 <= line <= len(lines):
            raise ToolError(
                f"line {line} does not exist: {path} has {_count(len(lines), 'line')}; 0 inserts at the top"
            )
        if line and not lines[line - 1].endswith("\n"):
            lines[line - 1] += "\n"
        added = text if text.endswith("\n") else text + "\n"
        whole = "".join([*lines[:line], added, *lines[line:]])
        return await self._change(path, whole, line + 1, line + added.count("\n"))

    @tool
    async def search_files(self, pattern: Word, path: Word = ".", regex: bool = False) -> str:
        """Find the lines that contain a text, in a file or in all files of a folder.

        Args:
            pattern: the text, or with `regex` an extended regular expression.
            path: a file or a folder.
            regex: whether `pattern` is an expression.
        """
        skipped = [f"--exclude-dir={name}" for name in _SKIPPED]
        argv = ["grep", "-rHnI", "--devices=skip", "-E" if regex else "-F", *skipped, "-e", pattern, "--", path]
        result = await self.sandbox.exec(argv, timeout_s=self.search_s, output_limit=self.output_limit)
        found, problem = result.stdout.decode("utf-8", "replace").rstrip("\n"), result.stderr.decode("utf-8", "replace")
        if result.outcome == "timeout":
            raise ToolError(f"the search took longer than {self.search_s:g} s; search in a smaller folder")
        if not found and result.code != 1:  # grep: 1 is no match, 2 an error; ignored if there are matches
            raise ToolError(problem.strip().removeprefix("grep: ") or f"grep ended with {result.outcome}")
        return self._trim(found) or f"[no line contains {pattern!r}]"

    async def _folder(self, path: str) -> str:
        entries = await _for_the_model(self.sandbox.list(path, limit=_ENTRIES), path)
        marks = {"folder": "/", "link": "@", "other": "?"}
        rows = [
            f"{entry.size if entry.kind == 'file' else '':>10} {entry.name}{marks.get(entry.kind, '')}"
            for entry in entries
        ]
        return self._trim("\n".join(rows)) or f"[{path} is an empty folder]"

    async def text_of(self, path: str, *, folder_ok: bool = True) -> str:
        """Reads the whole text of a file. Raises ToolError; IsADirectoryError if `folder_ok`."""
        try:
            content = await self.sandbox.read(path, limit=self.file_limit)
        except IsADirectoryError:
            if folder_ok:
                raise
            raise ToolError(f"{path} is a folder") from None
        except OSError as error:
            raise ToolError(_why(error, path)) from None
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no text file ({len(content)} bytes)") from None

    async def mode_of(self, path: str) -> int | None:
        """Returns the permission bits; None if the file does not exist."""
        result = await self.sandbox.exec(["stat", "-Lc", "%a", "--", path], timeout_s=self.search_s)
        return int(result.stdout, 8) if result.ok else None

    def check_size(self, path: str, text: str) -> bytes:
        """Encodes a text. Raises ToolError if it exceeds `file_limit`."""
        content = text.encode("utf-8", "replace")
        if len(content) > self.file_limit:
            raise ToolError(f"that makes {path} {len(content)} bytes long; at most {self.file_limit} are allowed")
        return content

    async def write(self, path: str, text: str, mode: int) -> None:
        """Writes a file. Raises ToolError."""
        content = self.check_size(path, text)
        await _for_the_model(self.sandbox.write(path, content, mode=mode), path)

    async def _change(self, path: str, text: str, first: int, last: int) -> str:
        """Writes a changed file and returns the changed lines with context."""
        await self.write(path, text, await self.mode_of(path) or 0o644)
        shown = _numbered(text.splitlines(), max(first - _CONTEXT, 1), last + _CONTEXT)
        return self._trim(f"[{path} changed; it now reads]\n{shown}")

    def _trim(self, text: str) -> str:
        """Cuts a long text to head and tail, at line ends where possible, and counts the dropped characters."""
        if len(text) <= self.output_limit:
            return text
        half = self.output_limit // 2
        head, tail = text[:half], text[-half:]
        head = head[: head.rfind("\n") + 1] or head
        tail = tail[tail.find("\n") + 1 :] or tail
        dropped = len(text) - len(head) - len(tail)
        return f"{head}[... {dropped} characters dropped ...]\n{tail}"


async def _for_the_model(call: Awaitable[T], path: str) -> T:
    try:
        return await call
    except OSError as error:
        raise ToolError(_why(error, path)) from None


def _why(error: OSError, path: str) -> str:
    return f"{path}: {(error.strerror or str(error)).lower()}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _numbered(lines: list[str], first: int, last: int | None) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))


def _many(text: str, old: str, path: str) -> str:
    count, at, line, lines = text.count(old), 0, 1, []
    for _ in range(min(count, _TOLD)):
        found = text.index(old, at)
        line += text.count("\n", at, found)
        lines.append(str(line))
        line += old.count("\n")
        at = found + len(old)
    shown = ", ".join(lines) + (", ..." if count > _TOLD else "")
    return f"`old` occurs {count} times in {path}, at lines {shown}; give more lines around it to make it unique"


def _none(text: str, old: str, path: str) -> str:
    """Explains why `old` was not found: different white space, or a similar line elsewhere. Linear in the text."""
    loose = [" ".join(line.split()) for line in text.splitlines()]
    wanted = [" ".join(line.split()) for line in old.strip("\n").splitlines()]
    whole = "\n".join(["", *loose, ""])
    at = whole.find("\n".join(["", *wanted, ""])) if wanted else -1
    if at >= 0:
        first = whole.count("\n", 0, at) + 1
        exact = _numbered(text.splitlines(), first, first + len(wanted) - 1)
        return f"`old` is not in {path}, but differs only in white space from:\n{exact}"
    near = _nearest(max(wanted, key=len, default=""), loose)
    hint = f"; the nearest line is:\n{_numbered(text.splitlines(), near, near)}" if near else "; view it first"
    return f"`old` is not in {path}{hint}"


def _nearest(wanted: str, lines: list[str]) -> int | None:
    """Returns the number, from 1, of the line most similar to `wanted` (by its beginning); None if none is similar."""
    wanted = wanted[:_COMPARED]
    pairs = _pairs(wanted)

    def alike(number: int) -> float:
        here = _pairs(lines[number][:_COMPARED])
        return len(pairs & here) / max(len(pairs | here), 1)

    few = heapq.nlargest(_CANDIDATES, range(len(lines)), key=alike)
    near = difflib.get_close_matches(wanted, [lines[number][:_COMPARED] for number in few], 1, 0.6)
    return next((number + 1 for number in few if lines[number][:_COMPARED] == near[0]), None) if near else None


def _pairs(text: str) -> set[str]:
    return {text[at : at + 2] for at in range(len(text) - 1)}
