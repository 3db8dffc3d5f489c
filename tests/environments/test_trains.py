"""Every recipe trains as it is: two iterations at small sizes, with a tiny policy of random weights.

Twelve of them run in every CI, all in the family `recipes` (`make test-recipes`), which makes what the text worlds and
the sandbox images need. What a recipe says is checked as it is: nothing is made small there, and no warning is left.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import agentrl
from agentrl.api.recipe_check import check
from agentrl.api.shipped import shipped_recipes
from agentrl.config.loader import load_recipe
from agentrl.config.model import ModelSettings, ScratchModel
from agentrl.config.profiles import shipped_profiles
from agentrl.models.load import load_model
from agentrl.store.check import check as check_run
from tests.checkpoint import shared

RECIPES = {each.name: each for each in shipped_recipes()}
EVERY_CI = (
    "agentdojo", "babyai/learn.yaml", "bfcl/short.yaml", "games", "games/self-play.yaml", "picture-maze",
    "quickstart", "search-qa/fiction.yaml", "self-play/scripted.yaml", "sql-chinook", "staged", "terminal",
)  # fmt: skip

SMALL = """\
sampling: {{max_tokens: 6}}
concurrency: 4
train: {{iterations: 2, groups: 2, group_size: 2, minibatch: 4, trainable: null, entropy_bonus: 0.001, stop: null,
  truncated: keep}}
eval: {{episodes: 2, every: 0}}
when:
  warm_start: {{warm_start: {{episodes: 4, steps: 2, batch: 2}}}}
  model.path:
    model: {{path: {tiny}}}
    agent: {{max_turns: 2}}
"""
"""A profile: what makes every recipe small. A policy that knows nothing needs no more than two turns to show it;
where a recipe leaves out what a limit cut off, nothing would be left."""

FEW: dict[str, tuple[str, ...]] = {
    "grounding": ("tasks.args.pages=48", "eval.tasks.args.pages=48"),
    "picture-maze": (
        "stages.0.sft.episodes=4", "stages.0.sft.steps=2", "stages.0.sft.batch=2", "stages.1.rl.train.iterations=2",
    ),
    "self-play": (
        "stages.0.sft.episodes=4", "stages.0.sft.steps=2", "stages.0.sft.batch=2",
        "policies.past.checkpoint.every=1",
    ),
    "staged": (
        "stages.0.sft.epochs=1", "stages.1.rl.train.iterations=1", "stages.2.preference.epochs=1",
        "stages.3.rl.train.iterations=2",
    ),
}  # fmt: skip
"""Overrides of recipes whose length is said in lists, or whose tasks are pictures that are drawn first."""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The profile, with a model folder of random weights. Its tokenizer knows the words of the recipes' pages."""

    def make(folder: Path) -> None:
        texts = [path.read_text() for path in sorted((Path(__file__).parents[2] / "recipes").glob("*/README.md"))]
        scratch = ScratchModel(hidden=16, layers=1, heads=1, vocab_size=2000, max_context=32_768)
        loaded = load_model(ModelSettings(scratch=scratch, device="cpu"), texts=texts, seed=0)
        loaded.model.save_pretrained(folder / "tiny")
        loaded.save_described(str(folder / "tiny"))
        (folder / "small.yaml").write_text(SMALL.format(tiny=folder / "tiny"))

    return str(shared(tmp_path_factory, "small", make) / "small.yaml")


def lacks(name: str) -> None:
    """Skips the test if the recipe needs what is not installed here."""
    for command, items in RECIPES[name].lacks.items():
        pytest.skip(f"{name}: {', '.join(items)} missing: {command}")


def pictures(name: str) -> list[str]:
    """Overrides without which a check would draw hundreds of pages."""
    return [*FEW["grounding"]] if name == "grounding" else []


def trains(name: str, small: str, folder: Path) -> None:
    lacks(name)
    few = FEW.get(name, ())
    found = check(name, pictures(name))
    assert found.warnings == []
    assert found.sandbox == RECIPES[name].sandbox
    run = agentrl.train(name, profile=small, overrides=few, out=folder / "run", reporters=())
    assert run is not None
    steps = [line for line in run.metrics if line.get("split") == "train" and "loss" in line]
    assert len(steps) >= 2
    assert all(math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]) for line in steps)
    assert check_run(folder / "run").ok
    assert run.info["profile"] == small


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EVERY_CI)
def test_it_trains(name: str, small: str, tmp_path: Path) -> None:
    trains(name, small, tmp_path)


@pytest.mark.family("recipes")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_trains(name: str, small: str, tmp_path: Path) -> None:
    trains(name, small, tmp_path)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_profile_fits_every_recipe(name: str) -> None:
    for profile in shipped_profiles():
        recipe = load_recipe(name, (), profile)
        assert recipe.train is not None
        assert recipe.eval is not None
        assert recipe.profile == profile


def test_a_check_downloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the tokenizer of a supervised stage, which reads conversations in the format of the model."""

    def nowhere(name: str, *, local_files_only: bool, **settings: object) -> str:
        assert local_files_only, name
        raise FileNotFoundError(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", nowhere)
    assert check("staged", [], "gpu").model == "Qwen/Qwen3-0.6B (Hugging Face Hub: downloaded when it is first loaded)"


@pytest.mark.family("recipes")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("profile", shipped_profiles())
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_profile_is_sound_for_every_recipe(name: str, profile: str) -> None:
    lacks(name)
    assert check(name, pictures(name), profile).warnings == []
