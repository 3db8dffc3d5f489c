"""An engine from outside: the one of docs/engines.md, in a file beside the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, sets
from tests.counting import write

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


@pytest.mark.slow
@pytest.mark.parametrize(("by", "reward"), [(1, 1.0), (9, 0.0)])
def test_what_an_engine_of_ones_own_says_is_what_the_run_measures(tmp_path: Path, by: int, reward: float) -> None:
    """It counts by `by`, and every task asks to count by 1."""
    code = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    (write(tmp_path / "counting") / "engine.py").write_text(code)
    engine = sets(f"engine={{use: ./engine.py:Adds, by: {by}}}")
    agentrl("rollout", "counting", "-n", "4", *engine, "--out", "run", cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        assert [(episode.reward, episode.trainable) for episode in run.episodes()] == [(reward, False)] * 4
