"""`agentrl show`: the column that sorts a list, the table of tasks, and the reason for a credit of 0."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console, RenderableType

from agentrl.store.run_dir import RunDir
from agentrl.types.task import Task
from agentrl.view.live import pace
from agentrl.view.show import show_by_task, show_episode, show_run
from tests.rewards.make import make_episode, turn


def said(shown: Iterable[RenderableType]) -> str:
    out = io.StringIO()
    for each in shown:
        Console(file=out, width=160).print(each)
    return out.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunDir.create(tmp_path / "run") as into:
        for task, rewards in {"easy": (1.0, 1.0), "hard": (0.0, 0.0), "half": (0.0, 1.0)}.items():
            for k, reward in enumerate(rewards):
                made = make_episode(Task.of(task, "Go."), turn(text="" if task == "hard" else "on"), reward=reward)
                into.add(msgspec.structs.replace(made, id=f"{task}#{k}", group_id=task, stop="answer"))
                into.add_credit(f"{task}#{k}", "grpo", [reward - 0.5 if task == "half" else 0.0], {}, iteration=0)
    return tmp_path / "run"


def test_tasks_are_listed_with_the_lowest_reward_first(run: Path) -> None:
    with RunDir.read(run) as reader:
        lines = said(show_by_task(reader)).splitlines()
        assert [line.split()[:4] for line in lines[-3:]] == [
            ["hard", "2", "0", "0.000"], ["half", "2", "0", "0.500"], ["easy", "2", "0", "1.000"],
        ]  # fmt: skip
        assert "(the first 1 of 3 tasks; --limit shows more)" in said(show_by_task(reader, limit=1))


def test_the_column_that_sorts_is_shown(run: Path) -> None:
    with RunDir.read(run) as reader:
        lines = said(show_run(reader, sort="advantage_min", limit=1)).splitlines()
        assert any("advantage_min" in line for line in lines)
        assert any("half#0" in line and "-0.500" in line for line in lines)
        assert "task_id" in said(show_run(reader, sort="task_id"))
        assert "created_at" not in said(show_run(reader))


def test_an_empty_reply_and_the_reason_of_no_credit_are_said(run: Path) -> None:
    with RunDir.read(run) as reader:
        shown = said(show_episode(reader, "hard#0"))
        assert "(empty reply)" in shown
        assert "credit 0: all 2 episodes of the group have reward 0, which is no signal" in shown
        assert "no signal" not in said(show_episode(reader, "half#0"))


def test_the_first_results_tell_no_time_left() -> None:
    assert pace(1, 256, 2.4) == ["1/256", "25.0/min"]
    assert pace(64, 256, 2.0) == ["64/256", "32.0/s", "0:06 left"]
    assert pace(1, 20, 1.0) == ["1/20", "1.0/s", "0:19 left"]
