"""Trainings that cannot begin, or have nothing to train on: refused with the key and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.rollouts.runner import LocalRunners
from agentrl.store.run_dir import RunDir
from agentrl.training.assembly import training
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.errors import AgentRLError, RecipeError, TrainError
from agentrl.types.reporter import Reporter
from tests.counting import CODE, TINY, write
from tests.engines.vllm_world import small_model

TRAIN = "train: {iterations: 1, groups: 2, group_size: 2}\n"
NOTHING = """
from agentrl.curriculum.parts import Sampler

class Nothing(Sampler):
    def draw(self, tasks, count, context):
        return []
"""


class OnTheTrainersGpu(Engine):
    """An engine that takes turns with the trainer on a GPU."""

    shares_gpu = True
    trainable = True

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        raise AssertionError("no episode begins")


async def refused(folder: Path, *sets: str, more: str = "", **how: Any) -> AgentRLError:
    """The error of a training of the counting recipe. It must come before any episode."""
    recipe = write(folder / "counting", TINY + TRAIN)
    (recipe / "task.py").write_text(CODE + more)
    planned = plan(load_recipe(str(recipe), ["warm_start=null", *sets])).rl[-1]
    with RunDir.create(folder / "run", {"command": "train"}) as run:
        with pytest.raises(AgentRLError) as error:
            async with training(planned, run, Reporter(), LocalRunners(None), **how) as loop:
                await loop.run()
        assert list(run.episodes()) == []
    return error.value


async def test_a_streamed_training_needs_an_engine_on_another_gpu(tmp_path: Path) -> None:
    engine = OnTheTrainersGpu()
    error = await refused(tmp_path, "train.stream=true", "train.minibatch=4", engine_for=lambda loaded: engine)
    assert isinstance(error, RecipeError)
    assert error.place == "train.stream"
    assert error.message == "the trainer waits until the engine, which has the same GPU, rests"
    assert error.remedy == "train.stream=false, or an engine on another GPU"


async def test_a_second_policy_needs_runners_that_have_policies(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="pip install 'agentrl-framework[lora]'")
    small_model(tmp_path / "model")
    sets = [f"model={{path: {tmp_path / 'model'}}}", "policies={critic: {lora: {rank: 2}, train: true}}"]
    error = await refused(tmp_path, *sets)
    assert isinstance(error, RecipeError)
    assert error.place == "policies.critic"
    assert "open_runners(parts, trains=True)" in str(error.remedy)


async def test_a_sampler_that_draws_no_task_is_named(tmp_path: Path) -> None:
    error = await refused(tmp_path, "curriculum=[./task.py:Nothing]", more=NOTHING)
    assert isinstance(error, TrainError)
    assert (error.message, error.place) == ("iteration 0: no task was drawn", "curriculum")
    assert error.remedy == "check the sampler of the curriculum: it returned no task"
