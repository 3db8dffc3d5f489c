"""Evaluation in the background: an interrupted one is repeated on its checkpoint, and closing cancels it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.config.recipe import EvalSettings
from agentrl.training.evaluator import BackgroundEvaluator
from tests.waiting import turns


class Evaluations:
    """Evaluations that are due at some iterations, and end when they are let go."""

    def __init__(self, due: set[int]) -> None:
        self.left, self.begun, self.ended = due, list[int](), list[int]()
        self.past: list[bool] = []
        self.go = asyncio.Event()

    def due(self, iteration: int, *, past: bool = False) -> EvalSettings | None:
        self.past.append(past)
        return EvalSettings() if iteration in self.left else None

    async def run(self, settings: EvalSettings, engine: Any, iteration: int) -> None:
        self.begun.append(iteration)
        await self.go.wait()
        self.ended.append(iteration)


class World:
    """A background evaluator, and what was handed to its engine."""

    def __init__(self, folder: Path, due: set[int]) -> None:
        self.evaluations, self.handed = Evaluations(due), list[tuple[int, Path | None]]()
        self.folder = folder
        state: Any = SimpleNamespace(record=SimpleNamespace(folder=lambda iteration: folder / f"it-{iteration}"))
        engine: Any = "second"
        given: Any = self.evaluations
        self.evaluator = BackgroundEvaluator(given, engine, self.hand_over, state)

    async def hand_over(self, engine: Any, iteration: int, checkpoint: Path | None) -> None:
        assert engine == "second"
        self.handed.append((iteration, checkpoint))


async def test_interrupted_evaluations_are_repeated_on_the_checkpoints_that_are_left(tmp_path: Path) -> None:
    world = World(tmp_path, {0, 1, 3, 5})
    for iteration in (0, 2, 3, 5):
        (tmp_path / f"it-{iteration}").mkdir()
    catching_up = asyncio.create_task(world.evaluator.catch_up(5))
    await turns()
    assert world.evaluations.begun == [0]
    assert not catching_up.done(), "one evaluation at a time: the engine holds one policy"
    world.evaluations.go.set()
    await catching_up
    await world.evaluator.finish()
    assert world.evaluations.ended == [0, 3], "1 has no checkpoint any more, and 5 is the current policy"
    assert world.handed == [(0, tmp_path / "it-0"), (3, tmp_path / "it-3")]
    assert set(world.evaluations.past) == {True}


async def test_closing_cancels_what_runs(tmp_path: Path) -> None:
    world = World(tmp_path, {2})
    await world.evaluator.close()
    await world.evaluator.run_if_due(2)
    await turns()
    assert world.evaluator.busy
    assert world.handed == [(2, None)], "the current policy needs no checkpoint"
    closing = asyncio.create_task(world.evaluator.close())
    await turns()
    ended = closing.done() and not world.evaluator.busy
    world.evaluations.go.set()
    await closing
    assert ended, "closing waits for no evaluation"
    assert world.evaluations.begun == [2]
    assert world.evaluations.ended == []


async def test_an_evaluation_that_failed_is_no_error_of_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, {2})

    async def fail(settings: EvalSettings, engine: Any, iteration: int) -> None:
        raise RuntimeError("the engine is gone")

    monkeypatch.setattr(world.evaluations, "run", fail)
    await world.evaluator.run_if_due(2)
    await turns()
    with pytest.raises(RuntimeError, match="the engine is gone"):
        await world.evaluator.finish()
    await world.evaluator.close()
