"""The comparison of credit estimators on the quickstart: how far it is, and what it says of a run that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.api import quickstart
from agentrl.types.errors import AgentRLError
from agentrl.types.reporter import working_for
from tests.works import Works

SMALL = [
    "tasks.args.mazes=1", "tasks.args.size=2", "tasks.args.extra_doors=0", "tasks.args.distance=1",
    "agent.max_turns=2", "train.iterations=2", "train.groups=1", "train.group_size=2", "eval.episodes=2",
    "warm_start.episodes=4", "warm_start.steps=2", "model.scratch.vocab_size=300",
]  # fmt: skip
_EVALUATION = {"split": "eval", "success": 1.0, "turns": 2.0}


def test_the_iterations_of_all_runs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(what: str, path: Path, overrides: Sequence[str], told: Callable[[int], None]) -> list[dict[str, Any]]:
        for iteration in (1, 2):
            told(iteration)
        return [_EVALUATION]  # ended early, by a rule of the recipe

    monkeypatch.setattr(quickstart, "_train_in_process", train)
    notes: list[str] = []
    with working_for(works := Works()):
        quickstart.compare(1, 1, tmp_path, ["train.iterations=4"], notes.append)
    done = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12]
    assert works.of("iterations of all runs") == [(each, 12) for each in done]
    assert len(notes) == 3


@pytest.mark.slow
def test_runs_in_other_processes_tell_each_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart, "CREDITS", {"GRPO": ["credit={use: grpo}"]})
    with working_for(works := Works()):
        quickstart.compare(1, 1, tmp_path, SMALL, lambda line: None)
    assert {done for done, _ in works.of("iterations of all runs")} == {0, 1, 2}
    with pytest.raises(AgentRLError, match=r"GRPO, seed 0 failed:[\s\S]*holds a run that differs"):
        quickstart.compare(1, 1, tmp_path, [*SMALL, "train.lr=0.5"], lambda line: None)
