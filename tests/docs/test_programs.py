"""The page docs/programs.md, executed: a program of the page trains, with the recipe of the page."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, sets
from tests.docs import lines_of
from tests.engines.vllm_world import small_model
from tests.sound import assert_sound

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"

LENGTH = """
def length(episode):
    return len(episode.turns[-1].text) / 100
"""
"""A reward that a model without any training can earn."""


def block(kind: str) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the page describes."""
    for name, kind in {"agent.py": "python", "recipe.yaml": "yaml", "tasks.jsonl": "json"}.items():
        (tmp_path / name).write_text(block(kind))
    (tmp_path / "length.py").write_text(LENGTH)
    small_model(tmp_path / "model")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


def test_the_recipe_is_short() -> None:
    assert lines_of(block("yaml")) <= 15


@pytest.mark.slow
def test_the_program_of_the_page_trains(folder: Path) -> None:
    """Two steps, with a tiny model, and a reward that tells its replies apart."""
    small = ["model={path: model}", "rewards.length=./length.py:length", "sampling.max_tokens=8"]
    sizes = ["train.iterations=2", "train.groups=1", "train.group_size=3", "eval=null"]
    agentrl("train", "recipe.yaml", *sets(*small, *sizes), cwd=folder)
    assert_sound(folder / "runs/doubler")
    with RunDir.read(folder / "runs" / "doubler") as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
        episodes = list(run.episodes(split="train"))
    assert [line["iteration"] for line in lines] == [1, 2]
    assert all(line["grad_norm"] > 0 for line in lines)
    assert [episode.status for episode in episodes] == ["done"] * 6
    assert all(episode.prompt[0]["content"].startswith("What is twice") for episode in episodes)
    assert all([tool["function"]["name"] for tool in episode.tools or []] == ["double"] for episode in episodes)
