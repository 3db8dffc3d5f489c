"""The most frequent reasons for rewards of 0, in metrics and summaries."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from agentrl.rollouts.summary import summary
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.figures.notes import kind_of, kinds_of, most_frequent
from agentrl.types.task import Task
from agentrl.view.show import show_summary
from agentrl.view.summary import summarise
from tests.rewards.make import make_episode, turn


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ("timeout: 1 passed", "timeout"),
        ("test 12: timeout: 3 failed; test 13: nonzero", "timeout"),
        ("timeout: no verdict within limits.score_s (300 s)", "timeout"),
        ("3 rows, not those of the gold query", "# rows"),
        ("no verdict within 2.5 s", "no verdict within # s"),
        ("the verifier raised ValueError: 17", "the verifier raised ValueError"),
        ("x" * 500, "x" * 48),
        ("", ""),
    ],
)
def test_how_a_note_begins(note: str, kind: str) -> None:
    assert kind_of(note) == kind


def an_episode(number: int, value: float | None, note: str) -> Episode:
    episode = make_episode(Task.of(f"t{number}", "Do it."), turn(), answer="a", components={"tested": value})
    return msgspec.structs.replace(
        episode, id=f"rollout/{number:06d}-t#0", group_id=f"g{number}", reward=value, notes={"tested": note}
    )


def test_only_what_gave_nothing_is_told() -> None:
    assert kinds_of(an_episode(0, 0.0, "timeout: 1")) == ["tested: timeout"]
    assert kinds_of(an_episode(0, -1.0, "no diff")) == ["tested: no diff"]
    assert kinds_of(an_episode(0, None, "malformed reply: 2")) == ["tested: malformed reply"]
    assert kinds_of(an_episode(0, 1.0, "30 times as fast")) == []


def test_the_most_frequent_ones_are_told() -> None:
    assert most_frequent(["b", "a", "c", "c", "d"]) == {"c": 2, "a": 1, "b": 1}


def test_metrics_and_the_summary_count_them(tmp_path: Path) -> None:
    notes = ["timeout: 1 passed"] * 5 + ["timeout: "] * 3 + ["nonzero: 1"] * 2
    episodes = [an_episode(number, 0.0, note) for number, note in enumerate(notes)]
    found = {name: value for name, value in summary(episodes).items() if name.startswith("notes/")}
    assert found == {"notes/tested/timeout": 8, "notes/tested/nonzero": 2}
    with RunDir.create(tmp_path / "run") as run:
        for episode in episodes:
            run.add(episode)
    with RunDir.read(tmp_path / "run") as run:
        assert summarise(run).notes == {"tested: timeout": 8, "tested: nonzero": 2}
        console = Console(width=200, file=io.StringIO())
        console.print(show_summary(run))
    assert "rewards of 0 or none: 8 x tested: timeout  2 x tested: nonzero" in console.file.getvalue()  # type: ignore[attr-defined]
