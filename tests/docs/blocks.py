"""The code blocks of pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = [ROOT / "docs", ROOT / "docs" / "coming-from", ROOT / "docs" / "results"]
PAGES = [ROOT / "README.md", *(page for folder in _FOLDERS for page in sorted(folder.glob("*.md")))]
"""Pages that people write. docs/reference is written by docs/generate.py."""

FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"<!-- no-run: (?P<reason>[^\n]+?) -->\n+\Z")
"""A comment right before a block that no test executes."""


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        kind: the language after the fence.
        no_run: the reason why nothing executes it; None: it is executed.
    """

    page: Path
    line: int
    kind: str
    text: str
    no_run: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Returns all blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        reason = REASON.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match["kind"].strip(), match["text"], reason["reason"] if reason else None))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
