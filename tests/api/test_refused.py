"""Options that cannot be meant are refused before a run directory is made."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import agentrl
from agentrl.types.errors import AgentRLError, RecipeError
from tests.counting import TRAINING, write


def test_an_unknown_script_leaves_no_run(tmp_path: Path) -> None:
    recipe = write(tmp_path / "counting")
    with pytest.raises(RecipeError, match="has no script 'oracel'") as refused:
        agentrl.rollout(str(recipe), 2, script="oracel", out=tmp_path / "run", reporters=())
    assert "oracle" in (refused.value.remedy or "")
    assert not (tmp_path / "run").exists()


def test_passes_without_a_run_are_refused(tmp_path: Path) -> None:
    recipe = write(tmp_path / "counting", TRAINING)
    with pytest.raises(RecipeError, match="no(ne| run) is named") as refused:
        agentrl.train(str(recipe), passes=2, out=tmp_path / "run", reporters=())
    assert "--from RUN" in (refused.value.remedy or "")
    assert not (tmp_path / "run").exists()


def test_a_script_that_is_replayed_twice_has_no_tokens_to_train_on(tmp_path: Path) -> None:
    recipe, runs = str(write(tmp_path / "counting", TRAINING)), [tmp_path / name for name in ("one", "two", "three")]
    agentrl.rollout(recipe, 2, script="oracle", out=runs[0], reporters=())
    for before, after in pairwise(runs):
        again = agentrl.rollout(recipe, 2, replay=before, out=after, reporters=())
        assert [each.trainable for each in again.whole_episodes()] == [False, False]
    for run in runs:
        with pytest.raises(RecipeError, match="no log-probabilities to train on"):
            agentrl.train(recipe, overrides=["warm_start=null"], replay=run, out=tmp_path / "run", reporters=())


def test_tasks_of_an_evaluation_that_cannot_be_made_leave_no_run(tmp_path: Path) -> None:
    recipe = str(write(tmp_path / "counting", TRAINING))
    wrong = ["eval.tasks={source: './task.py:nowhere'}"]
    with pytest.raises(AgentRLError, match="nowhere"):
        agentrl.train(recipe, overrides=wrong, out=tmp_path / "run", reporters=())
    assert not (tmp_path / "run").exists()
