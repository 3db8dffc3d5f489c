"""The section `stages`: what a stage takes over from the recipe, and mistakes with their places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.recipes import given_recipe
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe, RlStage, StageSettings, TrainSection, recipe_from_run
from agentrl.config.stages import PreferenceStage, SftStage
from agentrl.config.train import ImportanceSettings
from agentrl.training.stages.stage import stages_of
from agentrl.types.errors import RecipeError

RECIPE = """\
name: staged
tasks: ./task.py:many
scripts: {oracle: ./task.py:oracle}
rewards: {exact: ./task.py:exact}
train: {lr: 0.5, token_budget: 77, groups: 3, loss: dapo}
"""


def loaded(folder: Path, text: str, *overrides: str) -> Recipe:
    (folder / "recipe.yaml").write_text(RECIPE + text)
    return load_recipe(str(folder), overrides)


THREE = """\
stages:
  - {name: format, sft: oracle}
  - {name: prefer, preference: {run: format, loss: {ipo: {beta: 0.2}}, train: {token_budget: 99}}}
  - name: learn
    rl: {rewards: {other: ./task.py:other}, credit: rloo, train: {lr: 0.1}}
"""


def test_a_stage_sees_the_recipe_with_what_it_says_itself(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, THREE)
    first, second, third = stages_of(recipe)
    assert [(stage.name, stage.kind) for stage in (first, second, third)] == [
        ("format", "sft"), ("prefer", "preference"), ("learn", "rl")
    ]  # fmt: skip
    assert isinstance(first.settings, SftStage)
    assert first.settings.script == "oracle"
    assert first.settings.train.token_budget == 77
    assert isinstance(second.settings, PreferenceStage)
    assert second.settings.train.token_budget == 99
    assert second.settings.loss.use == "ipo"
    own = third.recipe
    assert own.train is not None
    assert (own.train.lr, own.train.groups, own.train.loss.use) == (0.1, 3, "dapo")
    assert [*own.rewards] == ["other"]
    assert own.base == tmp_path
    assert [*recipe.rewards] == ["exact"]


@pytest.mark.parametrize(
    ("settings", "samples", "steps"),
    [
        ({"epochs": 3, "batch": 3}, 10, 12),  # of each pass four steps, as `minibatches` splits it
        ({"batch": 3}, 9, 3),
        ({"epochs": 0.5, "batch": 3}, 10, 2),
        ({"epochs": 0.1, "batch": 16}, 2, 1),
        ({"steps": 7}, 1000, 7),
    ],
)
def test_an_epoch_is_a_pass_over_the_data(settings: dict[str, Any], samples: int, steps: int) -> None:
    assert SftStage(script="oracle", **settings).steps_over(samples) == steps


def test_it_comes_back_from_a_record_as_it_went_in(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, THREE)
    again = Recipe.model_validate(json.loads(recipe.model_dump_json()))
    assert again.model_dump() == recipe.model_dump()


def test_overrides_reach_into_stages(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, THREE, "stages.0.sft.steps=3", "stages.2.rl.train.groups=9", "train.lr=0.2")
    first, _, third = stages_of(recipe)
    assert isinstance(first.settings, SftStage)
    assert first.settings.steps == 3
    assert third.recipe.train is not None
    assert (third.recipe.train.groups, third.recipe.train.lr) == (9, 0.1)


def test_overrides_of_a_loaded_recipe_reach_the_stages_that_have_its_value(tmp_path: Path) -> None:
    read = loaded(tmp_path, THREE)
    recorded = recipe_from_run({"recipe": json.loads(read.model_dump_json()), "base": str(tmp_path)})
    for recipe in (read, recorded):
        other = given_recipe(recipe, {"train.token_budget": 55, "train.lr": 0.2, "train.groups": 8})
        first, second, third = stages_of(other)
        assert first.settings.train.token_budget == 55
        assert second.settings.train.token_budget == 99
        own = third.recipe.train
        assert own is not None
        assert (own.token_budget, own.groups, own.lr, own.loss.use) == (55, 8, 0.1, "dapo")
        third = stages_of(given_recipe(recipe, ["train={lr: 0.3}"]))[2]
        assert third.settings.train == TrainSection(lr=0.1), "what the recipe no longer says"
        assert given_recipe(recipe, ["seed=1"]).model_dump(exclude={"seed"}) == recipe.model_dump(exclude={"seed"})


def test_stages_that_python_made_inherit() -> None:
    raw = {"name": "x", "tasks": "./t.py:x", "scripts": {"oracle": "./t.py:o"}}
    train = TrainSection(token_budget=77, groups=3, importance=ImportanceSettings(high=2))
    stages = [
        StageSettings(name="format", sft=SftStage(script="oracle")),
        StageSettings(name="learn", rl=RlStage(train=TrainSection(groups=5))),
    ]
    first, second = Recipe.model_validate({**raw, "train": train, "stages": stages}).stages
    assert first.sft is not None
    assert first.sft.train.token_budget == 77
    assert second.rl is not None
    assert (second.rl.train.token_budget, second.rl.train.groups) == (77, 5)
    assert second.rl.train.importance == train.importance


def test_a_recipe_without_stages_is_its_warm_start_and_its_training(tmp_path: Path) -> None:
    (only,) = stages_of(loaded(tmp_path, ""))
    assert (only.name, only.kind, only.prefix, only.checkpoint(3)) == ("rl", "rl", "", "it-00003")
    warm, rl = stages_of(loaded(tmp_path, "warm_start: {script: oracle, steps: 5}\n"))
    assert isinstance(warm.settings, SftStage)
    assert (warm.name, warm.prefix, warm.settings.steps, warm.settings.lr) == ("warm_start", "", 5, 1e-3)
    assert warm.settings.train.token_budget == 77
    assert warm.checkpoint(999_999) < rl.checkpoint(0)


def test_checkpoints_of_later_stages_sort_behind(tmp_path: Path) -> None:
    names = [stage.checkpoint(step) for stage in stages_of(loaded(tmp_path, THREE)) for step in (0, 9, 10, 100_000)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("stages", "line", "said", "remedy"),
    [
        ("- {name: a, sft: oracle}\n- {name: b, sft: {run: c}}\n- {name: c, rl: }", 8,
         "stages.1.sft.run: stage 'c' is a later one (the third): it has no episodes yet",
         "earlier stages that play episodes: a; or name a run directory"),
        ("- {name: b, preference: {run: b}}", 7, "stages.0.preference.run: stage 'b' is the stage itself", "none"),
        ("- {name: a, sft: {jsonl: x}}\n- {name: b, preference: {run: a}}", 8, "stage 'a' plays no episodes", "none"),
        ("- {name: a, sft: oracle}\n- {name: a, rl: }", 8, "stages.1.name: another stage has that name", ""),
        ("- {name: a, sft: nobody}", 7, "stages.0.sft.script: is 'nobody', but scripts has ['oracle']", ""),
        ("- {name: a, sft: {script: x, length: 9}}", 7, "'length' needs 'text'", ""),
        ("- {name: a, sft: {jsonl: x, run: y}}", 7, "parquet, hf, run, text, found jsonl and run", ""),
        ("- {name: a, sft: {run: y, messages: input}}", 7, "'messages' needs 'jsonl', 'parquet' or 'hf'", ""),
        ("- {name: a, preference: {jsonl: x, split: train}}", 7, "'split' needs 'hf'", ""),
        ("- {name: a, sft: {jsonl: x, min_reward: 1}}", 7, "'min_reward' needs 'run'", ""),
        ("- {name: a, preference: {jsonl: x, min_gap: 0.5}}", 7, "'min_gap' needs 'run'", ""),
        ("- {name: a, preference: {jsonl: x, threshold: 0.5}}", 7, "'threshold' needs 'run'", ""),
        ("- {name: a, preference: {jsonl: x, steps: 1, epochs: 2}}", 7, "give steps or epochs", ""),
        ("- {name: a, sft: {jsonl: x, train: {groups: 3}}}", 7, "stages.0.sft.train.groups: unknown key", "allowed"),
        ("- {name: a, sft: oracle, rl: {}}", 7, "a stage needs exactly one of sft, preference, rl", ""),
        ("- {name: eval, rl: }", 7, "'eval' is reserved", ""),
        ("- {name: a, sft: }", 7, "stages.0.sft: is empty: it names no training data", "{jsonl: ./file.jsonl}"),
        ("- {name: a, preference: }", 7, "stages.0.preference: is empty", "{hf: NAME} or {run: NAME}"),
        ("- {name: rl, rl: }", 7, "'rl' is reserved for recipes without stages", ""),
        ("- {name: a/b, rl: }", 7, "stages.0.name", ""),
        ("- {name: a, sft: {jsonl: x, stop: {metric: eval/success, at_least: 1}}}", 7,
         "stages.0.sft.stop.metric: a supervised or preference stage is not evaluated", "a metric of its own lines"),
        ("- {name: a, rl: {train: {stop: {metric: success}}}}", 7, "give at_least, at_most or patience", ""),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_place_and_remedy(
    tmp_path: Path, stages: str, line: int, said: str, remedy: str
) -> None:
    with pytest.raises(RecipeError) as error:
        loaded(tmp_path, f"stages:\n{stages}\n")
    assert error.value.place == f"{tmp_path / 'recipe.yaml'}:{line}"
    assert said in error.value.message
    assert remedy in (error.value.remedy or "")


def test_a_warm_start_beside_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a recipe with stages has no warm_start") as error:
        loaded(tmp_path, "warm_start: oracle\nstages: [{name: a, rl: }]\n")
    assert error.value.remedy == "stages: [{name: warm_start, sft: {script: oracle}}, ...]"
