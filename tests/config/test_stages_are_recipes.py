"""The sections of a stage, with those that it shares, are a recipe like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.loader import load_recipe
from agentrl.config.recipe import recipe_from_run
from agentrl.rollouts.auxiliary.open import check_policies
from agentrl.rollouts.builder import build
from agentrl.training.stages.stage import stages_of
from agentrl.types.errors import RecipeError

CRITIC: dict[str, Any] = {"lora": {"rank": 4}, "train": True, "outcome": {"length": 1}, "sampling": {"max_tokens": 16}}
BASE: dict[str, Any] = {
    "name": "x",
    "tasks": {"jsonl": "t.jsonl", "prompt": "x"},
    "rewards": {"letters": "./t.py:letters", "length": "./t.py:length"},
    "model": {"path": "model"},
    "policies": {"critic": CRITIC},
    "train": {"iterations": 1},
}


def written(folder: Path, recipe: dict[str, Any]) -> Path:
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder / "recipe.yaml"


@pytest.mark.parametrize(
    ("sections", "where", "said"),
    [
        (
            {"sampling": {"temperature": 0.5}},
            "policies.critic.sampling.temperature",
            "one training has one temperature",
        ),
        ({"rewards": {"letters": "./t.py:letters"}}, "policies.critic.outcome", "'length' is no component"),
        ({"agent": {"program": ["true"]}}, "policies", "a program opens no contexts"),
        ({"agent": {"use": "dialogue"}}, "stages.0.rl.agent", ""),
    ],
)
def test_what_a_recipe_refuses_its_stages_refuse(
    tmp_path: Path, sections: dict[str, Any], where: str, said: str
) -> None:
    for recipe in (BASE | sections, BASE | {"stages": [{"name": "s", "rl": sections}]}):
        with pytest.raises(RecipeError) as refused:
            load_recipe(str(written(tmp_path, recipe)))
        assert said in str(refused.value)
    assert "(in the stage 's')" in str(refused.value)
    assert where in str(refused.value)


def test_stages_that_fit_load_and_come_back_from_a_run(tmp_path: Path) -> None:
    stages = [
        {"name": "warm", "sft": {"jsonl": "./a.jsonl", "steps": 1}},
        {"name": "s", "rl": {"sampling": {"max_tokens": 3}, "train": {"lr": 0.5}}},
    ]
    recipe = load_recipe(str(written(tmp_path, BASE | {"stages": stages})))
    again = recipe_from_run({"recipe": json.loads(recipe.model_dump_json()), "base": str(tmp_path)})
    for each in (recipe, again):
        last = stages_of(each)[1].recipe
        assert last.train is not None
        assert (last.sampling.max_tokens, last.train.lr, last.train.iterations) == (3, 0.5, 1)


@pytest.mark.parametrize(
    "sections",
    [{"credit": {"use": "igpo"}}, {"information_gain": {}}, {"credit": {"use": "hcapo"}}, {"hindsight": {}}],
)
@pytest.mark.parametrize("staged", [True, False])
def test_a_second_policy_does_not_train_where_the_policy_scores_turns(
    tmp_path: Path, sections: dict[str, Any], staged: bool
) -> None:
    more = {"stages": [{"name": "s", "rl": sections}]} if staged else sections
    (tmp_path / "t.py").write_text("def letters(): return 1.0\ndef length(): return 1.0\n")
    recipe = load_recipe(str(written(tmp_path, BASE | more)))
    with pytest.raises(RecipeError, match=f"information gain or hindsight: not with this {next(iter(sections))}"):
        check_policies(build(stages_of(recipe)[-1].recipe))


INHERITED: dict[str, Any] = {
    "iterations": 3,
    "loss": {"use": "dapo", "high": 0.3},
    "lora": {"rank": 8, "alpha": 16},
    "keep": {"last": 5},
    "betas": [0.8, 0.9],
    "stop": {"metric": "reward", "at_least": 0.9},
}


@pytest.mark.parametrize(
    ("override", "stage", "train"),
    [
        ("stages.0.rl.train.loss.high=0.4", {"loss": {"use": "dapo", "high": 0.4}}, {}),
        ("stages.0.rl.train.lora.rank=2", {"lora": {"rank": 2, "alpha": 16}}, {}),
        ("stages.0.rl.train.keep.best=eval/success", {"keep": {"last": 5, "best": "eval/success"}}, {}),
        ("stages.0.rl.train.stop.at_least=0.5", {"stop": {"at_least": 0.5}}, {}),
        ("stages.0.rl.train.betas.0=0.5", {"betas": [0.5, 0.9]}, {}),
        ("train.keep.last=7", {"keep": {"last": 7}}, {"keep": {"last": 7}}),
        ("train={iterations: 9}", {"iterations": 9, "loss": {"use": "ppo_clip"}}, {"iterations": 9}),
    ],
)
def test_an_override_of_a_loaded_recipe_changes_one_key(
    override: str, stage: dict[str, Any], train: dict[str, Any]
) -> None:
    """Of a section that the stage has from the recipe, the rest stays; a key of `train` that changes, stages follow."""
    own = {key: value for key, value in BASE.items() if key != "policies"}
    loaded = load_recipe({**own, "train": INHERITED, "eval": {"every": 1}, "stages": [{"name": "a", "rl": None}]})
    changed = load_recipe(loaded, [override])
    assert changed.stages[0].rl is not None
    for section, wanted, before in ((changed.stages[0].rl.train, stage, loaded.train), (changed.train, train, None)):
        assert section is not None
        found = json.loads(section.model_dump_json())
        for key, value in wanted.items():
            assert {**found[key], **value} == found[key] if isinstance(value, dict) else found[key] == value
        if before is not None and "train={" not in override:
            same = json.loads(before.model_dump_json())
            assert {key for key in found if found[key] != same[key]} == {*wanted}
