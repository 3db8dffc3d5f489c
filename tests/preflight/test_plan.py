"""A recipe is understood once per command: what it names is loaded once for each stage and source."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.api.recipe_check import check
from agentrl.curriculum import task_source
from agentrl.estimators import registry
from agentrl.preflight import training
from tests.counting import TRAINING, write

FUNCTIONS: list[Callable[..., Any]] = [registry.load_credit, task_source.load_tasks, training.rl_plan]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls of `FUNCTIONS`, whichever module makes them."""
    counted: Counter[str] = Counter()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counts(*args: Any, **kwargs: Any) -> Any:
            counted[function.__name__] += 1
            return function(*args, **kwargs)

        return counts

    for function in FUNCTIONS:
        wrapped = counting(function)
        for module in [each for name, each in sys.modules.items() if name.startswith("agentrl.")]:
            if inspect.unwrap(getattr(module, function.__name__, print)) is function:
                monkeypatch.setattr(module, function.__name__, wrapped)
    return counted


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    return str(write(tmp_path / "counting", TRAINING))


SMALL = ["warm_start.episodes=4", "warm_start.steps=1", "train.iterations=1", "eval.episodes=2"]


def test_a_check_understands_each_stage_once(recipe: str, calls: Counter[str]) -> None:
    check(recipe, SMALL)
    assert calls == {"load_credit": 2, "load_tasks": 1, "rl_plan": 1}


def test_a_rollout_understands_its_recipe_once(recipe: str, calls: Counter[str], tmp_path: Path) -> None:
    agentrl.rollout(recipe, 2, script="oracle", out=tmp_path / "run", reporters=())
    assert calls == {"load_credit": 1, "load_tasks": 1}


@pytest.mark.slow
@pytest.mark.parametrize("own", [[], ["eval.tasks={source: ./task.py:counts, args: {n: 3}}"]])
def test_a_training_understands_each_stage_and_source_once(
    recipe: str, calls: Counter[str], tmp_path: Path, own: list[str]
) -> None:
    agentrl.train(recipe, overrides=[*SMALL, *own], out=tmp_path / "run", reporters=())
    assert calls == {"load_credit": 2, "load_tasks": 2 + len(own), "rl_plan": 1}
    calls.clear()
    agentrl.eval(tmp_path / "run", 2, reporters=(), out=tmp_path / "eval")
    assert calls == {"load_credit": 1, "load_tasks": 1}
