"""Text memory of a policy: short experiences that stand in the prompt of its episodes.

It is part of the policy, as weights are: a version of it belongs to each update, and the policy's folder holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

import msgspec

from agentrl.types.errors import StoreError

FILE = "memory.json"
"""Its file in a policy's folder, for example a checkpoint."""

HEADING = "Experiences of earlier episodes. Read them before you act:"

Operation = Literal["add", "update", "delete"]
OPERATIONS: tuple[Operation, ...] = ("add", "update", "delete")


LONGEST = 2000
"""Characters of an entry. It stands in every prompt, and episodes decide what is written."""


class MemoryChange(msgspec.Struct, frozen=True):
    """One change of a memory.

    Attributes:
        id: of the entry to update or delete.
        text: the new text.
    """

    operation: Operation
    text: str = ""
    id: str | None = None


class TextMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Entries by id. Ids are never used again.

    Attributes:
        version: the number of updates of the policy.
        numbered: the number of entries that were ever added.
        heading: the line above the entries in a prompt.
        shown: whether the entries stand in the prompt. Otherwise an agent reads them (`session.memory`).
        most: maximum number of entries.
    """

    entries: dict[str, str] = {}
    version: int = 0
    numbered: int = 0
    heading: str = HEADING
    shown: bool = True
    most: int = 64

    @property
    def text(self) -> str:
        """The entries, one a line, each with its id."""
        return "\n".join(f"[{id}] {text}" for id, text in self.entries.items())

    def under(self, system: str | None) -> str | None:
        """Returns the system message of an episode: the recipe's, and at its end the entries."""
        if not self.entries or not self.shown:
            return system
        own = f"{self.heading}\n{self.text}"
        return f"{system}\n\n{own}" if system else own

    def changed(self, changes: Iterable[MemoryChange | None]) -> tuple[Self, dict[str, float]]:
        """Returns the memory after some changes, made in their order, and their counts.

        Skipped are changes that could not be read (None), that name an unknown id or have no text, and additions to a
        full memory. A text of more than `LONGEST` characters is cut.

        Returns:
            The memory, and the metrics memory_entries, memory_added, memory_updated, memory_deleted, memory_skipped.
        """
        entries, numbered = dict(self.entries), self.numbered
        counts = {"added": 0, "updated": 0, "deleted": 0, "skipped": 0}
        for change in changes:
            if change is not None and change.operation == "add" and change.text and len(entries) < self.most:
                entries[f"G{numbered}"] = change.text[:LONGEST]
                numbered += 1
                counts["added"] += 1
            elif change is not None and change.operation == "update" and change.text and change.id in entries:
                entries[change.id] = change.text[:LONGEST]
                counts["updated"] += 1
            elif change is not None and change.operation == "delete" and change.id in entries:
                del entries[change.id]
                counts["deleted"] += 1
            else:
                counts["skipped"] += 1
        told = {f"memory_{name}": float(count) for name, count in {"entries": len(entries), **counts}.items()}
        return msgspec.structs.replace(self, entries=entries, numbered=numbered), told

    def save(self, folder: Path) -> None:
        """Writes `memory.json` into a folder."""
        (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Reads the memory of a policy's folder; None if it has none.

        Raises:
            StoreError: the file is damaged.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"no text memory: {error}", place=str(path), remedy="remove the folder, or restore the file"
            ) from None
