"""The pages of docs/coming-from: what they move is played as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.store.run_dir import RunDir
from tests.docs.blocks import ROOT, blocks_of

PAGES = ROOT / "docs" / "coming-from"
FILES = {
    "verl.md": {"python": ["task.py"]},
    "trl.md": {"python": ["task.py", "scripts.py"]},
    "verifiers.md": {"python": ["task.py"]},
}
"""The files that the blocks of a page are, in their order."""


def written(page: str, folder: Path) -> Path:
    """The recipe of a page."""
    files = {"json": ["rows.jsonl"], "yaml": ["recipe.yaml"], **FILES[page]}
    for kind, names in files.items():
        found = [block.text for block in blocks_of(PAGES / page) if block.kind == kind and block.no_run is None]
        assert len(found) == len(names), kind
        for name, text in zip(names, found, strict=True):
            (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("page", FILES)
def test_the_moved_example_is_played(page: str, tmp_path: Path) -> None:
    folder = written(page, tmp_path)
    for script, rewards in (("oracle", {1.0, 1.2}), ("idle", {0.0})):
        agentrl.rollout(folder, 2, script=script, out=folder / script, reporters=())
        with RunDir.read(folder / script) as run:
            rows = list(run.rows())
        assert [row.status for row in rows] == ["done", "done"]
        assert {row.reward for row in rows} <= rewards


def test_every_page_is_played_and_short() -> None:
    pages = sorted(PAGES.glob("*.md"))
    assert [page.name for page in pages] == sorted(FILES)
    assert all(len(page.read_text().split()) < 900 for page in pages)
