"""`train.keep.best`: a stage starts from the best checkpoint of the stage before."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

import agentrl
from agentrl.api.run_dirs import kept_checkpoint
from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.store.checkpoints import about, checkpoints
from agentrl.types.errors import RecipeError, TrainError
from tests.counting import TINY, write

STAGES = """\
train: {groups: 2, group_size: 4, minibatch: 8, canary: false}
eval: {episodes: 8, every: 1}
stages:
- {name: imitate, sft: {script: hasty, episodes: 24, steps: 60, batch: 8, lr: 3.0e-3}}
- {name: spoil, rl: {train: {iterations: 3, lr: 0.5, keep: {last: 1, best: eval/sampled_tokens}}}}
- {name: go_on, rl: {train: {iterations: 1, lr: 1.0e-6, kl: {coef: 0.01}}}}
"""


@pytest.mark.slow
def test_the_next_stage_starts_from_the_best_checkpoint(tmp_path: Path) -> None:
    recipe = write(tmp_path / "counting", TINY.replace("warm_start", "#") + STAGES)
    run = agentrl.train(str(recipe), out=tmp_path / "run", reporters=())
    assert run is not None
    lines = [line for line in run.metrics if line.get("stage") == "spoil" and line["split"] == "eval"]
    rated = {line["iteration"]: line["sampled_tokens"] for line in lines}
    best = max(rated, key=rated.__getitem__)
    assert [sorted(rated), best < 3] == [[0, 1, 2, 3], True]
    folders = tmp_path / "run/checkpoints"
    kept = [folder.name for folder in checkpoints(folders)]
    assert f"01-spoil-00000{best}" in kept, "the best one of a stage outlives it"
    assert kept_checkpoint(run.path, "best") == folders / f"01-spoil-00000{best}"
    assert kept_checkpoint(run.path) == kept_checkpoint(run.path, "1") == folders / "02-go_on-000001"
    assert kept_checkpoint(run.path, f"01-spoil-00000{best}").name == f"01-spoil-00000{best}"
    with pytest.raises(RecipeError, match="has no checkpoint '7'") as error:
        kept_checkpoint(run.path, "7")
    assert "02-go_on-000001" in str(error.value.remedy)
    assert about(folders / "02-go_on-000001")["pins"]["reference"] == f"01-spoil-00000{best}"
    first, start = (
        load_file(folders / name / "model.safetensors") for name in (f"01-spoil-00000{best}", "02-go_on-000000")
    )
    assert all((start[name] == first[name]).all() for name in first)


def test_a_best_checkpoint_that_nothing_knows_is_refused(tmp_path: Path) -> None:
    recipe = str(write(tmp_path / "counting", TINY.replace("warm_start", "#") + STAGES))
    plan(load_recipe(recipe))
    with pytest.raises(RecipeError, match="known by evaluations") as caught:
        plan(load_recipe(recipe, ["eval=null"]))
    assert "stages.1.rl.train.keep.best" in str(caught.value.place)


@pytest.mark.parametrize("wrong", ["{best: success}", "{last: 0}", "{best: eval/}", "3"])
def test_a_keep_that_keeps_nothing_is_refused(wrong: str, tmp_path: Path) -> None:
    recipe = str(write(tmp_path / "counting", TINY.replace("warm_start", "#") + STAGES))
    with pytest.raises(RecipeError, match=r"train\.keep"):
        load_recipe(recipe, [f"train.keep={wrong}"])


@pytest.mark.slow
def test_a_number_that_no_evaluation_has_ends_the_training(tmp_path: Path) -> None:
    recipe = write(tmp_path / "counting", TINY.replace("warm_start", "#") + STAGES)
    with pytest.raises(TrainError, match="no evaluation has the number 'eval/sampled_token'") as error:
        agentrl.train(
            str(recipe),
            overrides=["stages.1.rl.train.keep.best=eval/sampled_token"],
            out=tmp_path / "run",
            reporters=(),
        )
    assert "eval/sampled_tokens" in str(error.value.remedy)
