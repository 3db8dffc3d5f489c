"""The page docs/games.md, executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="pip install 'agentrl-framework[games]'")

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "games.md"


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def test_the_lake_needs_no_python(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "recipe.yaml").write_text(block("yaml"))
    assert "act" in agentrl("recipe", "check", "lake", cwd=tmp_path).stdout
    agentrl("rollout", "lake", "--n", "16", "--script", "random", cwd=tmp_path)
    with RunDir.read(tmp_path / "runs" / "lake-random") as run:
        episodes = list(run.episodes())
    assert len(episodes) == 16
    assert all("[S]FFF" in episode.prompt[-1]["content"] for episode in episodes)
    assert all(episode.info["steps"] > 0 for episode in episodes)
    assert_sound(tmp_path / "runs/lake-random")


def test_an_environment_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "doors").mkdir()
    (tmp_path / "doors" / "task.py").write_text(
        block("python") + "\nfrom agentrl import Say\ndef oracle(task, rng):\n"
        "    yield Say(['left', 'right'][task.seed % 2])\n"
    )
    (line,) = re.findall(r"`(tools: \[\{game: .*\]`)", PAGE.read_text())
    (tmp_path / "doors" / "recipe.yaml").write_text(
        f"name: doors\ntasks: agentrl.tools.builtin.games.tasks:seeds\n{line[:-1]}\n"
        "rewards: {score: agentrl.tools.builtin.games.game:score}\nscripts: {oracle: ./task.py:oracle}\n"
    )
    agentrl("rollout", "doors", "--n", "8", "--script", "oracle", cwd=tmp_path)
    with RunDir.read(tmp_path / "runs" / "doors-oracle") as run:
        assert [episode.reward for episode in run.episodes()] == [1.0] * 8
