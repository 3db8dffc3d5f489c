"""The page docs/gui.md, executed: in a namespace sandbox with this machine's programs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, sets
from tests.sound import assert_sound
from tests.tools.builtin.gui.desks import needs_desktop
from tests.view.test_images import drawn

pytestmark = pytest.mark.slow

PATIENT = sets("tools.0.settle_s=60", "tools.0.start_s=200")  # limits, which only a slow machine comes near
PAGE = Path(__file__).parents[2] / "docs" / "gui.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the page describes."""
    code, recipe = (text for _, text in re.findall(r"```(python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2])
    (tmp_path / "note").mkdir()
    (tmp_path / "note" / "task.py").write_text(code)
    (tmp_path / "note" / "recipe.yaml").write_text(recipe)
    return tmp_path


@needs_desktop
def test_the_oracle_writes_the_note(folder: Path) -> None:
    agentrl("rollout", "note", "--n", "2", "--script", "oracle", *PATIENT, cwd=folder)
    with RunDir.read(folder / "runs" / "note-oracle") as run:
        episodes = list(run.episodes())
    assert [episode.reward for episode in episodes] == [1.0] * 2
    for episode in episodes:
        (click,) = episode.turns[0].calls
        assert (click.points, len(click.images)) == ([(500.0, 400.0)], 1)
        assert {branch.reason for branch in episode.branches} == {"images"}, "older screenshots became a line"
    assert "[image 1024x768 png" in agentrl("show", "runs/note-oracle", "note0#0", cwd=folder).stdout
    assert "at 500, 400" in agentrl("show", "runs/note-oracle", "note0#0", cwd=folder).stdout
    assert_sound(folder / "runs/note-oracle")
    agentrl("view", "runs/note-oracle", "--export", "note.html", cwd=folder)
    if shutil.which("chromium"):
        page = drawn(folder / "note.html", folder, "rollout/000000-note0#0", "note-oracle")
        assert 'cx="500" cy="400"' in page.split("<img")[1], "the click is marked on the screen that was clicked"
        assert "cx=" not in page.split("<img")[2]
    agentrl("rollout", "note", "--n", "2", "--script", "random", cwd=folder)
    with RunDir.read(folder / "runs" / "note-random") as run:
        assert {episode.reward for episode in run.episodes()} == {0.0}
