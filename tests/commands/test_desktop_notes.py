"""recipes/desktop-notes: a real editor under a real X server; the files on disk decide."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from tests.sound import played
from tests.tools.builtin.gui.desks import needs_desktop

RECIPE = Path(__file__).parents[2] / "recipes" / "desktop-notes"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)


@pytest.mark.slow
@pytest.mark.family("environments")
@needs_desktop
@pytest.mark.parametrize(("script", "n", "reward"), [("oracle", 6, 1.0), ("empty", 1, 0.0), ("junk", 1, 0.0)])
def test_a_task_of_each_kind(tmp_path: Path, script: str, n: int, reward: float) -> None:
    patient = ("tools.0.settle_s=60", "tools.0.start_s=200")  # limits, which only a slow machine comes near
    episodes = [*played(RECIPE, n, script, tmp_path / "run", *patient).whole_episodes()]
    assert [episode.reward for episode in episodes] == [reward] * n
    for episode in episodes:
        keys = [turn.state for turn in episode.turns]
        assert all(keys)
        assert len(set(keys)) > 1 or script == "empty", "what is shown changes"


def test_tasks_and_splits() -> None:
    notes = load("./task.py:notes")
    tasks, held = list(notes(n=60)), list(notes(n=30, held_out=True))
    assert list(notes(n=10)) == tasks[:10]
    assert list(notes(n=10, seed=1)) != tasks[:10]
    assert len({task.id for task in tasks}) == 60
    assert set(Counter(task.id.partition("-")[0] for task in tasks).values()) == {10}
    words = {word for task in tasks for text in task.data["files"].values() for word in text.replace(":", "").split()}
    own = {word for word in words if word[0].islower()} - {"not"}
    for task in held:
        for name, text in task.data["files"].items():
            assert not own & set(text.split()), "held out"
            assert name not in {file for other in tasks for file in other.data["files"]}
    for task in (*tasks, *held):
        assert task.sandbox is not None
        assert task.sandbox["files"] != task.data["files"], "doing nothing is not right"
