"""The `apply_patch` tool: changes several files of the sandbox atomically."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from agentrl.sandbox.helper import Helper, HelperRaised, TooMuch
from agentrl.tools.base import Tool, own, tool
from agentrl.tools.builtin import patch as reading
from agentrl.tools.builtin.files import Files
from agentrl.tools.builtin.patch import Change
from agentrl.tools.words import Word
from agentrl.types.errors import ToolError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task

_CPU_S = 10.0
"""CPU seconds for parsing a patch, and for applying it to a file."""

_HELPER = Helper("agentrl.tools.builtin.patch", memory_mb=512, size=8)
"""Separate processes, because searching the lines of a patch may cost the product of its length and the file's."""


class ApplyPatch(Tool):
    """Offers `apply_patch(patch)`: a patch in the V4A form of coding models, or a unified diff.

    All hunks are checked before the first write: a patch that does not apply changes nothing, and the error names the
    hunk. If a write fails or times out, earlier writes are rolled back.

    Args:
        timeout_s: timeout of one patch.
        file_limit: maximum bytes of a file that is opened or written.
    """

    needs_sandbox = keeps_files_alone = True

    def __init__(self, timeout_s: float = 30.0, file_limit: int = 1 << 20) -> None:
        self._files = Files(timeout_s, file_limit=file_limit)
        self.timeout_s = self._files.timeout_s

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Stores the episode's sandbox."""
        self.sandbox = own(sandbox)
        await self._files.open(task, sandbox)

    @tool
    async def apply_patch(self, patch: Word) -> str:
        """Change files by a patch. Nothing is changed if a part of it does not apply.

        Args:
            patch: begins with '*** Begin Patch' and ends with '*** End Patch'. Between them, for each file:
                '*** Update File: PATH' with hunks that begin with '@@' (lines with ' ', '-' or '+' in front),
                '*** Add File: PATH' with lines that begin with '+', or '*** Delete File: PATH'. Or a unified diff.
        """
        try:
            read = await _worked(reading.read, patch)
            changes = msgspec.convert(read["changes"], list[Change])
            await self._refuse_collisions(changes)
            steps = [await self._step(change) for change in changes]
        except ToolError as error:
            raise ToolError(f"{error}\n{NOTHING}") from None
        await self._carry_out(steps)
        return "\n".join(step.told for step in steps)

    async def _refuse_collisions(self, changes: Sequence[Change]) -> None:
        """Refuses a patch that names a file twice, under any path, or one path as both file and folder."""
        known: dict[str, str] = {}
        for change in changes:
            if change.moved is not None and await self._place(change.moved) == await self._place(change.path):
                change.moved = None
            for path in filter(None, (change.path, change.moved)):
                names = {await self._place(path), await self._inode(path)} - {""}
                if other := next((known[name] for name in names if name in known), None):
                    what = f"{path} twice" + (f" (as {other})" if other != path else "")
                    raise ToolError(f"the patch names {what}; put all of its hunks under one heading")
                known |= dict.fromkeys(names, path)
        for name, path in known.items():
            if over := next((known[folder] for folder in _folders(name) if folder in known), None):
                raise ToolError(f"the patch has {over} as a file, and {path} in it")

    async def _place(self, path: str) -> str:
        """Returns the absolute path without folder links and `..`; its last folders may be missing."""
        found = await self.sandbox.exec(["sh", "-c", _PLACE, "sh", path], timeout_s=self.timeout_s)
        return posixpath.normpath(found.text.removesuffix("\n"))

    async def _inode(self, path: str) -> str:
        """Returns the device and inode of a file; "" if it does not exist."""
        found = await self.sandbox.exec(["stat", "-Lc", "inode %d:%i", "--", path], timeout_s=self.timeout_s)
        return found.text.strip() if found.ok else ""

    async def _step(self, change: Change) -> _Step:
        """Computes the step of one file without writing."""
        for path in filter(None, (change.path if change.kind == "add" else None, change.moved)):
            if await self._files.mode_of(path) is not None:
                raise ToolError(f"{path} exists already")
        old = None if change.kind == "add" else await self._files.text_of(change.path, folder_ok=False)
        mode = 0o644 if change.kind == "add" else await self._files.mode_of(change.path) or 0o644
        new = None
        if change.kind != "delete":
            added = "".join(f"{line}\n" for hunk in change.hunks for line in hunk.new)
            new = added if old is None else (await _worked(reading.apply, msgspec.to_builtins(change), old))["text"]
            self._files.check_size(change.moved or change.path, new)
        return _Step(change, old, new, mode)

    async def _carry_out(self, steps: Sequence[_Step]) -> None:
        """Creates new files, then changes existing ones, then removes: early failures are the easiest to roll back.

        A cancelled patch (timeout of the call or the episode) is also rolled back, before the cancellation propagates.

        Raises:
            ToolError: a step failed; earlier steps were rolled back.
        """
        undo: list[Callable[[], Awaitable[None]]] = []
        try:
            for step in sorted(steps, key=lambda step: step.is_new, reverse=True):
                if step.new is not None:
                    undo.append(await self._way_back(step))
                    await self._files.write(step.target, step.new, step.mode)
            for step in steps:
                if step.goes:
                    undo.append(partial(self._write, step.change.path, step.old or "", step.mode))
                    await self._remove(step.change.path)
        except ToolError as error:
            left = await _undone(undo)
            rest = "\n".join(["what was changed before it could not be undone:", *left]) if left else NOTHING
            raise ToolError(f"{error}\n{rest}") from None
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(_undone(undo)))
            raise

    async def _way_back(self, step: _Step) -> Callable[[], Awaitable[None]]:
        """Returns the function that undoes the write of a step."""
        if not step.is_new:
            return partial(self._write, step.target, step.old or "", step.mode)
        made = await self.sandbox.exec(["sh", "-c", _MISSING, "sh", step.target], timeout_s=self.timeout_s)
        return partial(self._unmake, step.target, made.text.removesuffix("\n"))

    async def _write(self, path: str, text: str, mode: int) -> None:
        await self._files.write(path, text, mode)

    async def _unmake(self, path: str, folder: str) -> None:
        """Removes a file and the folders created for it, up to `folder`; "" if none were created."""
        await self.sandbox.exec(["sh", "-c", _UNMAKE, "sh", path, folder], timeout_s=self.timeout_s)

    async def _remove(self, path: str) -> None:
        done = await self.sandbox.exec(["rm", "--", path], timeout_s=self.timeout_s)
        if not done.ok:
            raise ToolError(f"{path} cannot be removed: {done.text.strip()}")


async def _worked(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Runs a function of `patch` in a helper process and returns its result.

    Raises:
        ToolError: the patch was refused, or took too long.
    """
    try:
        found: dict[str, Any] = await _HELPER.ask(function, *arguments, cpu_s=_CPU_S)
    except TooMuch as error:
        raise ToolError(f"the patch is too much work: {error}") from None
    except HelperRaised as error:  # on what the model wrote
        raise ToolError(f"the patch cannot be read: {error}") from None
    if "refused" in found:
        raise ToolError(found["refused"])
    return found


@dataclass(frozen=True)
class _Step:
    """Change of one file.

    Attributes:
        old, new: text before and after; None: the file does not exist.
        mode: permission bits.
    """

    change: Change
    old: str | None
    new: str | None
    mode: int

    @property
    def target(self) -> str:
        """Path of the new text."""
        return self.change.moved or self.change.path

    @property
    def is_new(self) -> bool:
        """True if the target does not exist yet."""
        return self.change.kind == "add" or self.change.moved is not None

    @property
    def goes(self) -> bool:
        """True if the old file is removed."""
        return self.change.kind == "delete" or self.change.moved is not None

    @property
    def told(self) -> str:
        """Message for the model."""
        done = {"add": "added", "update": "changed", "delete": "deleted"}[self.change.kind]
        return f"{self.change.path} {done}" + (f", now {self.change.moved}" if self.change.moved else "")


NOTHING = "Nothing was changed."
_PLACE = """d=$(dirname -- "$1"); rest=$(basename -- "$1")
while [ ! -d "$d" ]; do rest=$(basename -- "$d")/$rest; d=$(dirname -- "$d"); done
cd -- "$d" && printf '%s/%s\\n' "$(pwd -P)" "$rest\""""
_MISSING = """d=$(dirname -- "$1"); top=; while [ ! -e "$d" ]; do top=$d; d=$(dirname -- "$d"); done; echo "$top\""""
_UNMAKE = """rm -f -- "$1"; [ -n "$2" ] || exit 0; d=$(dirname -- "$1")
while rmdir -- "$d" 2>/dev/null && [ "$d" != "$2" ]; do d=$(dirname -- "$d"); done"""


def _folders(name: str) -> list[str]:
    """Returns the parent folders of a normalized path."""
    return [name[:at] for at in range(1, len(name)) if name[at] == "/"]


async def _undone(undo: Sequence[Callable[[], Awaitable[None]]]) -> list[str]:
    """Rolls back steps in reverse order; returns the errors."""
    return [str(worse) for back in reversed(undo) if (worse := await _failed(back)) is not None]


async def _failed(back: Callable[[], Awaitable[None]]) -> ToolError | None:
    try:
        await back()
    except ToolError as error:
        return error
    return None
