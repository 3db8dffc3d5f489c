"""The `memory` tool: notes of the episode that survive a cut of the conversation."""

from __future__ import annotations

import hashlib

from agentrl.registry.checks import at_least_one
from agentrl.tools.base import Tool, tool
from agentrl.types.errors import ToolError


class Memory(Tool):
    """Offers `remember(name, text)` and `recall(name)`. Each episode starts without notes.

    Args:
        notes: maximum number of notes.
        chars: maximum characters of a note.

    Raises:
        RecipeError: a limit below 1.
    """

    def __init__(self, notes: int = 32, chars: int = 2000) -> None:
        at_least_one("memory", notes=notes, chars=chars)
        self.most, self.chars = notes, chars
        self._notes: dict[str, str] = {}

    @tool
    async def remember(self, name: str, text: str) -> str:
        """Keep a note. One of the same name is replaced; an empty text deletes it.

        Args:
            name: By which it is recalled.
            text: What to keep.
        """
        if not name.strip():
            raise ToolError("a note needs a name")
        if len(text) > self.chars or len(name) > self.chars:
            raise ToolError(f"a note holds at most {self.chars} characters")
        if not text:
            if self._notes.pop(name, None) is None:
                raise ToolError(self._none(name))
            return f"deleted {name!r}"
        if name not in self._notes and len(self._notes) == self.most:
            raise ToolError(f"there are {self.most} notes, and no more are kept: delete one")
        self._notes[name] = text
        return f"kept {name!r}"

    @tool
    async def recall(self, name: str | None = None) -> str:
        """Show a note, or the names of all.

        Args:
            name: Of the note. Default: the names of all notes.
        """
        if name is None:
            return "\n".join(self._notes) or "no notes"
        if name not in self._notes:
            raise ToolError(self._none(name))
        return self._notes[name]

    def _none(self, name: str) -> str:
        return f"there is no note {name!r}; there are: {', '.join(self._notes) or 'none'}"

    def state_key(self) -> str:
        """Hash of all notes."""
        return hashlib.sha256(repr(sorted(self._notes.items())).encode("utf-8", "surrogatepass")).hexdigest()[:16]
