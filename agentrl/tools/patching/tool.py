"""The `apply_patch` tool: changes several files of the sandbox at once, all or none."""

from __future__ import annotations

from agentrl.tools.base import Tool, tool
from agentrl.tools.files import Files
from agentrl.tools.patching.patch import Change, patched, read_patch
from agentrl.tools.words import Word
from agentrl.types.errors import ToolError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task


class ApplyPatch(Tool):
    """Offers `apply_patch(patch)`: the V4A form that coding models write, or a unified diff.

    Every hunk is tried before the first file is written: a patch that does not apply changes nothing, and the model
    is told which hunk it was.

    Args:
        timeout_s: bound on one patch.
        file_limit: bytes of the largest file that is opened or written.
    """

    needs_sandbox = keeps_files_alone = True

    def __init__(self, timeout_s: float = 30.0, file_limit: int = 1 << 20) -> None:
        self._files = Files(timeout_s, file_limit=file_limit)
        self.timeout_s = self._files.timeout_s

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Keeps the episode's sandbox."""
        assert sandbox is not None
        self.sandbox = sandbox
        await self._files.open(task, sandbox)

    @tool
    async def apply_patch(self, patch: Word) -> str:
        """Change files by a patch. Nothing is changed if a part of it does not apply.

        Args:
            patch: begins with '*** Begin Patch' and ends with '*** End Patch'. Between them, for each file:
                '*** Update File: PATH' with hunks that begin with '@@' (lines with ' ', '-' or '+' in front),
                '*** Add File: PATH' with lines that begin with '+', or '*** Delete File: PATH'. Or a unified diff.
        """
        changes = read_patch(patch)
        if twice := {change.path for change in changes if sum(other.path == change.path for other in changes) > 1}:
            raise ToolError(f"the patch names {', '.join(sorted(twice))} twice; put all of its hunks under one heading")
        made = [(change, await self._made(change)) for change in changes]
        return "\n".join([await self._carry_out(change, text) for change, text in made])

    async def _made(self, change: Change) -> str:
        """The new text of a file; nothing is written."""
        for path in filter(None, (change.path if change.kind == "add" else None, change.moved)):
            if await self._files.mode_of(path) is not None:
                raise ToolError(f"{path} exists already\nNothing was changed.")
        if change.kind == "add":
            return "".join(f"{line}\n" for hunk in change.hunks for line in hunk.new)
        text = await self._files.text_of(change.path, folder_ok=False)
        return patched(change, text) if change.kind == "update" else ""

    async def _carry_out(self, change: Change, text: str) -> str:
        mode = 0o644 if change.kind == "add" else await self._files.mode_of(change.path) or 0o644
        if change.kind != "delete":
            await self._files.write(change.moved or change.path, text, mode)
        if change.kind == "delete" or change.moved:
            done = await self.sandbox.exec(["rm", "--", change.path], timeout_s=self.timeout_s)
            if not done.ok:
                raise ToolError(f"{change.path} cannot be removed: {done.text.strip()}")
        said = {"add": "added", "update": "changed", "delete": "deleted"}[change.kind]
        return f"{change.path} {said}" + (f", now {change.moved}" if change.moved else "")
