"""`agentrl top`, driven by textual's pilot."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.store.heartbeat import Flight, Pulse, write_pulse
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError, MissingExtra, StoreError
from tests.store.make import make_episode

try:
    from textual.widgets import DataTable, Static

    from agentrl.commands.top import OneEpisode, Top
except ModuleNotFoundError:
    Top = None  # type: ignore[assignment,misc]

shows = pytest.mark.skipif(Top is None, reason="textual is not installed: pip install 'agentrl-framework[top]'")
NOW = 1_000.0
SIZE = (160, 50)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """A run that is being written."""
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "house"}}) as run:
        run.add(make_episode("train/0/good", turns=2, reward=1.0, created_at=1.0))
        run.add(make_episode("train/0/bad", turns=3, reward=0.0, created_at=2.0, answer="\x1b[31mred"))
        run.add(make_episode("train/0/broken", turns=1, status="infra_error", created_at=3.0))
        run.add_failure({"kind": "SandboxLost", "message": "gone \x1b]0;owned\x07", "episode": "train/0/broken"})
        for iteration, success in enumerate((0.0, 0.5, 1.0)):
            run.add_metrics({"split": "train", "iteration": iteration, "success": success, "entropy": 1.0})
        pulse = Pulse(
            at=NOW,
            pid=1,
            started=NOW - 60,
            phase="iteration 4/9",
            phase_since=NOW - 10,
            done=20,
            total=30,
            episodes={
                "train/4/a": Flight(stage="generate", since=NOW - 2, turns=3),
                "train/4/b": Flight(stage="sandbox", since=NOW - 75),
            },
            running=2,
            waiting=8,
            sandboxes={"in_use": 1, "warm": 4},
            engines=[{"name": "vllm", "servers": [{"url": "http://a:8000", "running": 2, "failures": 3}]}],
        )
        write_pulse(run.path, pulse)
        yield run


def text_of(top: Top, id: str) -> str:
    return str(top.query_one(f"#{id}", Static).render())


def rows_of(top: Top, id: str) -> list[list[str]]:
    table = top.query_one(f"#{id}", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


@shows
async def test_a_run_that_is_being_written_is_shown_and_followed(run: RunDir) -> None:
    top = Top(run.path, clock=lambda: NOW)
    async with top.run_test(size=SIZE) as pilot:
        assert "house" in text_of(top, "state")
        assert "3 episodes" in text_of(top, "state")
        assert "iteration 4/9  20/30  2.0/s  0:05 left" in text_of(top, "state")
        assert rows_of(top, "flights") == [
            ["train/4/b", "sandbox", "1:15", "-"],
            ["train/4/a", "generate", "0:02", "3"],
        ]
        parts = text_of(top, "parts")
        for told in ("in flight: generate 1  sandbox 1", "queue: 2 begun, 8 wait for a place"):
            assert told in parts
        assert "sandboxes: in use 1, warm 4" in parts
        assert "http://a:8000: 2 running; 3 failures in succession" in parts
        assert [row[:2] for row in rows_of(top, "episodes")] == [
            ["train/0/broken", "infra_error"],
            ["train/0/bad", "done"],
            ["train/0/good", "done"],
        ]
        assert "success  1.000" in text_of(top, "curves")
        assert "entropy" in text_of(top, "curves")
        assert "SandboxLost: gone" in text_of(top, "failures")
        assert "\x1b" not in text_of(top, "failures") + str(rows_of(top, "episodes"))
        run.add(make_episode("train/0/new", turns=2, reward=0.5, created_at=9.0))
        await pilot.press("r")
        assert rows_of(top, "episodes")[0][0] == "train/0/new"


@shows
async def test_keys_open_sort_and_filter(run: RunDir) -> None:
    top = Top(run.path, clock=lambda: NOW)
    async with top.run_test(size=SIZE) as pilot:
        await pilot.press("b")
        assert [row[0] for row in rows_of(top, "episodes")][:2] == ["train/0/good", "train/0/bad"], "the best first"
        await pilot.press("b")
        assert rows_of(top, "episodes")[0][0] == "train/0/bad", "the worst first"
        await pilot.press("f")
        assert [row[0] for row in rows_of(top, "episodes")] == ["train/0/broken"]
        await pilot.press("f", "down", "r")
        await pilot.press("enter")
        assert isinstance(top.screen, OneEpisode)
        await pilot.press("r", "f", "b")
        assert isinstance(top.screen, OneEpisode), "the look of every second goes on below"
        await pilot.press("escape")
        assert not isinstance(top.screen, OneEpisode)
        await pilot.press("tab", "enter")
        assert not isinstance(top.screen, OneEpisode), "an episode in flight is not stored yet"


@shows
@pytest.mark.parametrize(
    ("ended", "told"), [("finished", "ended: finished"), (None, "ended without a word (killed?) in the phase 'rest'")]
)
async def test_a_run_that_is_not_written_is_shown(ended: str | None, told: str, tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        pass
    write_pulse(run.path, Pulse(at=1.0, pid=1, started=0.0, phase="rest", ended=ended))
    top = Top(run.path, clock=lambda: NOW)
    async with top.run_test(size=SIZE) as pilot:
        assert told in text_of(top, "state")
        assert "0 episodes" in text_of(top, "state")
        assert text_of(top, "curves") == "no metrics yet"
        assert text_of(top, "failures") == "no failures"
        await pilot.press("enter", "f", "b")
        await pilot.press("q")
    assert top.return_code == 0


@shows
async def test_a_run_that_is_deleted_meanwhile_is_told(run: RunDir) -> None:
    top = Top(run.path, clock=lambda: NOW)
    async with top.run_test(size=SIZE) as pilot:
        shutil.rmtree(run.path)
        await pilot.press("r")
        assert "the run cannot be read" in text_of(top, "state")
        run.path.mkdir()  # for its close


@shows
def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such folder"):
        Top(tmp_path / "nowhere")


def test_a_missing_extra_and_a_missing_terminal_are_told(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["top", str(run.path)])
    assert isinstance(done.exception, AgentRLError)
    assert str(done.exception) == f"agentrl top needs a terminal\n  -> agentrl show {run.path} prints a summary"
    monkeypatch.setattr("agentrl.cli.is_terminal", lambda: True)
    monkeypatch.setitem(sys.modules, "textual", None)
    for name in [name for name in sys.modules if name.startswith("textual.") or name == "agentrl.commands.top"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    done = CliRunner().invoke(app, ["top", str(run.path)])
    assert isinstance(done.exception, MissingExtra)
    assert "pip install 'agentrl-framework[top]'" in str(done.exception)
