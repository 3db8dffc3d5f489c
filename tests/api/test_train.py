"""`agentrl.train`: what happens before the event loop runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from tests.counting import CODE, TINY, write

ALONE = """
def counts(n=40):
    import asyncio
    assert asyncio._get_running_loop() is None, "episodes would wait for this code"
"""


@pytest.mark.slow
def test_tasks_of_all_stages_are_made_before_the_event_loop_runs(tmp_path: Path) -> None:
    settings = "train: {iterations: 1, groups: 2, group_size: 2}\n"
    settings += "eval: {episodes: 2, tasks: {source: ./task.py:counts}}\n"
    recipe = write(tmp_path / "counting", TINY + settings)
    code = CODE.replace("def counts(n=40):\n", ALONE.lstrip())
    (recipe / "task.py").write_text(code)
    run = agentrl.train(str(recipe), out=tmp_path / "run", reporters=())
    assert run is not None
    assert {episode.split for episode in run.dir.episodes()} == {"demo", "train", "eval"}
