"""Profiles: what they change, what they leave, and how they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from agentrl.api.eval import evaluated
from agentrl.api.recipes import given_recipe
from agentrl.api.run_dirs import begin_run
from agentrl.config.loader import explain_recipe, load_recipe
from agentrl.config.profiles import shipped_profiles
from agentrl.types.errors import RecipeError

RECIPE = """\
name: demo
agent: {max_turns: 4}
model: {scratch: {hidden: 64}, device: cpu}
engine: {batch_invariant: true, max_batch: 8}
credit: grpo
warm_start: oracle
scripts: {oracle: ./task.py:oracle}
train: {groups: 2, lr: 1.0e-3}
"""
STAGES = """\
stages:
  - name: first
    rl: {train: {groups: 3}}
  - name: second
    rl:
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(text: str, at: str = "own.yaml") -> str:
    Path(at).parent.mkdir(exist_ok=True)
    Path(at).write_text(text)
    return at


def test_a_profile_lies_between_the_file_and_the_overrides(folder: Path) -> None:
    own = profile("train: {groups: 5, minibatch: 7}\nconcurrency: 3\n")
    recipe = load_recipe("recipe.yaml", ["train.minibatch=9"], own)
    assert recipe.train is not None
    assert (recipe.train.groups, recipe.train.minibatch, recipe.train.lr, recipe.concurrency) == (5, 9, 1e-3, 3)
    assert recipe.profile == own
    assert load_recipe("recipe.yaml").profile is None


def test_another_engine_or_model_replaces_the_section_and_the_same_one_is_merged(folder: Path) -> None:
    served = load_recipe("recipe.yaml", (), profile("engine: vllm\nmodel: {path: a/b}\n"))
    assert served.engine.settings == {}
    assert (served.required_model.path, served.required_model.scratch, served.required_model.device) == (
        "a/b", None, "auto",
    )  # fmt: skip
    same = load_recipe("recipe.yaml", (), profile("engine: {use: torch, max_batch: 4}\nmodel: {dtype: bfloat16}\n"))
    assert same.engine.settings == {"batch_invariant": True, "max_batch": 4}
    assert same.required_model.device == "cpu"
    named = load_recipe("recipe.yaml", ["engine.use=torch"], profile("engine: {max_batch: 4}\n"))
    assert named.engine.settings == {"batch_invariant": True, "max_batch": 4}


def test_conditions_ask_the_recipe_and_not_the_profile(folder: Path) -> None:
    own = profile(
        "model: {path: a/b}\nwhen:\n  model.scratch: {concurrency: 5}\n  model.path: {concurrency: 6}\n"
        "  about.images: {seed: 9}\n  warm_start: {warm_start: {steps: 7}}\n"
    )
    recipe = load_recipe("recipe.yaml", (), own)
    assert (recipe.concurrency, recipe.seed) == (5, 0)
    assert recipe.warm_start is not None
    assert (recipe.warm_start.script, recipe.warm_start.steps) == ("oracle", 7)


def test_a_star_in_a_condition_is_any_name(folder: Path) -> None:
    own = profile("when:\n  policies.*.checkpoint.every: {concurrency: 5}\n")
    assert load_recipe("recipe.yaml", (), own).concurrency == 64
    assert load_recipe("recipe.yaml", ["policies={past: {script: oracle}}"], own).concurrency == 64
    Path("recipe.yaml").write_text(RECIPE + "policies: {a: {script: oracle}, past: {checkpoint: {every: 5}}}\n")
    assert load_recipe("recipe.yaml", (), own).concurrency == 5


def test_stages_follow(folder: Path) -> None:
    Path("recipe.yaml").write_text(RECIPE.replace("warm_start: oracle\n", "") + STAGES)
    own = profile("train: {groups: 5, minibatch: 7}\n")
    for recipe in (load_recipe("recipe.yaml", (), own), given_recipe(load_recipe("recipe.yaml"), (), own)):
        trained = [stage.rl.train for stage in recipe.stages if stage.rl is not None]
        assert [(each.groups, each.minibatch) for each in trained] == [(3, 7), (5, 7)]


def test_a_model_of_a_profile_is_relative_to_the_profile(folder: Path) -> None:
    own = profile("model: {path: ./weights}\n", "far/own.yaml")
    assert load_recipe("recipe.yaml", (), own).required_model.path == str(folder / "far" / "weights")
    here = load_recipe("recipe.yaml", ["model.path=./weights"], own)
    assert here.required_model.path == str(folder / "weights")


def test_a_mapping_and_a_loaded_recipe_take_one(folder: Path) -> None:
    assert load_recipe({"name": "x"}, (), "laptop").concurrency == 16
    loaded = load_recipe("recipe.yaml")
    assert given_recipe(loaded, {"seed": 4}, "laptop").profile == "laptop"
    assert given_recipe(loaded).profile is None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "ltop",
            None,
            "there is no profile 'ltop'\n  -> did you mean 'laptop'? give a YAML file, or one of: gpu, laptop",
        ),
        ("own.yaml", "train: {grups: 5}\n", "own.yaml:1: train.grups: unknown key\n  -> did you mean 'groups'?"),
        ("own.yaml", "concurrency: 1\nengine:\n  use: nowhere\n", "own.yaml:2: engine: there is no engine 'nowhere'"),
        ("own.yaml", "seed: 1\nname: x\n", "own.yaml:2: a profile has no 'name'"),
        ("own.yaml", "- 1\n", "own.yaml:1: a profile must be a mapping"),
        ("own.yaml", "a: [\n", "own.yaml:2: not valid YAML"),
        ("own.yaml", "when: {model.scrtch: {}}\n", "own.yaml:1: when: recipes have no key 'model.scrtch'"),
        ("own.yaml", "when: {nothing.at.all: {}}\n", "when: recipes have no key 'nothing.at.all'"),
        ("own.yaml", "when: {model.path: 3}\n", "when.model.path must be a mapping, found 3"),
        ("own.yaml", "when: [1]\n", "when must be a mapping of keys to overlays"),
    ],
)
def test_a_wrong_profile_is_an_error_with_its_place(folder: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        profile(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe("recipe.yaml", (), name)
    assert says in str(caught.value)


def test_where_each_key_comes_from_is_told(folder: Path) -> None:
    said = explain_recipe("recipe.yaml", ["seed=3"], profile("train: {groups: 5}\n"))
    assert YAML(typ="safe").load(said)["train"]["groups"] == 5
    lines = {line.strip() for line in said.splitlines()}
    assert {
        "name: demo # recipe.yaml:1", "seed: 3 # --set", "groups: 5 # profile own.yaml", "lr: 0.001 # recipe.yaml:8",
        "max_turns: 4 # recipe.yaml:2", "use: grpo # recipe.yaml:5", "script: oracle # recipe.yaml:6",
        "epochs: 1", "episodes: 256",
    } <= lines  # fmt: skip


def test_stages_tell_what_they_inherit(folder: Path) -> None:
    Path("recipe.yaml").write_text(RECIPE.replace("warm_start: oracle\n", "") + STAGES)
    stages = explain_recipe("recipe.yaml").partition("\nstages:\n")[2]
    assert "groups: 3 # recipe.yaml:10" in stages
    assert "groups: 2 # recipe.yaml:7" in stages


def test_a_run_records_its_profile(folder: Path) -> None:
    recipe = load_recipe("recipe.yaml", (), "laptop")
    begin_run(folder / "run", recipe, "rollout").close()
    run = begin_run(folder / "run", recipe, "rollout")
    assert run.info["profile"] == "laptop"
    run.close()
    run = begin_run(folder / "plain", load_recipe("recipe.yaml"), "rollout")
    assert run.info["profile"] is None
    run.close()


def test_of_a_run_a_profile_changes_all_but_the_model(folder: Path) -> None:
    begin_run(folder / "run", load_recipe("recipe.yaml"), "train").close()
    checkpoint = folder / "run" / "checkpoints" / "it-00001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text('{"iteration": 1}')
    (checkpoint / "config.json").write_text("{}")
    recipe, iteration = evaluated(folder / "run", (), profile("model: {path: a/b}\nconcurrency: 2\n"))
    assert (recipe.concurrency, iteration) == (2, 1)
    assert recipe.required_model.path == str(checkpoint)


def test_the_shipped_ones() -> None:
    assert shipped_profiles() == ["gpu", "laptop", "node"]
