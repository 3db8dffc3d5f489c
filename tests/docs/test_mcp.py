"""The page docs/mcp.md, executed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="pip install 'agentrl-framework[mcp]'")

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the page describes."""
    text = PAGE.read_text()
    paths, blocks = re.findall(r"`(shelf/[\w.]+)`", text), re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL)
    (tmp_path / "shelf").mkdir()
    for path, block in zip(paths, blocks, strict=False):  # after its files the page shows other recipes
        (tmp_path / path).write_text(block.replace("python3", sys.executable))
    return tmp_path


def test_every_episode_has_a_shelf_of_its_own(folder: Path) -> None:
    agentrl("recipe", "check", "shelf", cwd=folder)
    agentrl("rollout", "shelf", "--n", "2", "--script", "oracle", cwd=folder)
    agentrl("rollout", "shelf", "--n", "1", "--script", "random", cwd=folder)
    assert_sound(folder / "runs/shelf-oracle")
    with RunDir.read(folder / "runs" / "shelf-oracle") as stored:
        episodes = list(stored.episodes())
    assert [episode.reward for episode in episodes] == [1.0] * 2
    shown = agentrl("show", "runs/shelf-oracle", episodes[0].id, cwd=folder).stdout
    assert "take(article: string)" in shown
