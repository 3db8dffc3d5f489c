"""What stages need is checked before the first of them begins, and named with place and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError
from tests.counting import CODE, RECIPE
from tests.training.stages.test_runs import episode

STAGES = """\
model: {scratch: {}}
train: {iterations: 1}
stages:
  - {name: format, sft: {jsonl: ./format.jsonl}}
  - {name: prefer, preference: {run: ./stored}}
  - {name: learn, rl: }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE + STAGES)
    (tmp_path / "format.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    with RunDir.create(tmp_path / "stored", {"recipe": {}}) as run:
        for member, reward in enumerate((0.0, 1.0)):
            run.add(episode(f"x/train/g0#{member}", reward))
    return tmp_path


def test_a_good_one_passes(folder: Path) -> None:
    stages = plan(load_recipe(str(folder))).stages
    assert [each.stage.name for each in stages] == ["format", "prefer", "learn"]


SEATS = """
from agentrl import ToolAgent

class Table(ToolAgent):
    seats = True
"""


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ("sft={run: learn, min_reward: 1}", True),
        ("sft={run: learn}", False),
        ("preference={run: learn}", True),
        ("preference={run: learn, loss: kto, threshold: 1}", True),
    ],
)
def test_a_stage_does_not_choose_episodes_with_seats_by_one_reward(folder: Path, settings: str, refused: bool) -> None:
    (folder / "task.py").write_text(CODE + SEATS)
    first = "{name: learn, rl: {credit: role_grpo}}"
    kind, _, given = settings.partition("=")
    overrides = ["agent=./task.py:Table", f"stages=[{first}, {{name: b, {kind}: {given}}}]"]
    recipe = load_recipe(str(folder), overrides)
    if not refused:
        assert len(plan(recipe).stages) == 2
        return
    with pytest.raises(AgentRLError, match="seats of an episode have outcomes of their own") as error:
        plan(recipe)
    assert f"stages.1.{kind}.run" in str(error.value.place)


@pytest.mark.parametrize(
    ("override", "said", "remedy"),
    [
        ("stages.0.sft={run: learn}", "stages.0.sft.run: stage 'learn' is a later one (the third)", "earlier stages"),
        ("stages.0.sft={jsonl: ./none.jsonl}", "stages.0.sft.jsonl: there is no file", "relative to the recipe"),
        ("stages.0.sft={parquet: ./none.parquet}", "stages.0.sft.parquet: there is no file", "relative to the recipe"),
        ("stages.0.sft={hf: ./none}", "stages.0.sft.hf: there is no folder", "relative to the recipe"),
        ("stages.1.preference={parquet: ./none.parquet}", "stages.1.preference.parquet: there is no file", "paths"),
        (
            "stages.0.sft={jsonl: ./format.jsonl, messages: a.b}",
            "stages.0.sft.messages: the row has no 'a.b'",
            "prompt",
        ),
        ("stages.0.sft={jsonl: ./task.py}", "task.py:2: not valid JSON", ""),
        ("stages.0.sft={run: ./stored, min_reward: 2}", "stages.0.sft.run", "lower min_reward"),
        ("stages.1.preference.run=./nowhere", "there is no such folder", "name the folder"),
        ("stages.1.preference.loss=dop", "stages.1.preference.loss: there is no preference loss 'dop'", "'dpo'"),
        ("stages.1.preference.loss={simpo: {gama: 1}}", "stages.1.preference.loss.gama", "did you mean 'gamma'"),
        ("stages.1.preference.min_gap=2", "stages.1.preference.run: none of 1 groups", "several episodes a task"),
        ("stages.1.preference.threshold=0.5", "stages.1.preference.threshold: the loss dpo compares", "the loss kto"),
        (
            "stages.0.sft.train.lora={}",
            "stages.0 (format): train.lora: a scratch model has random weights",
            "model.path",
        ),
        ("stages.2.rl.rewards={}", "stages.2 (learn): rewards: the recipe has no rewards", "at least one"),
        ("stages.2.rl.credit=gae", "stages.2 (learn): train.critic: gae needs a critic", "train: {critic: {}}"),
        (
            "stages.2.rl.train.stop={metric: eval/success, at_least: 1}",
            "stages.2 (learn): train.stop.metric: 'eval/success' is a metric of evaluations",
            "eval: {every: 10}",
        ),
        ("model=null", "stages.0 (format): the recipe has no section 'model'", "training needs it"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, override: str, said: str, remedy: str) -> None:
    with pytest.raises(AgentRLError) as error:
        plan(load_recipe(str(folder), [override]))
    assert said in str(error.value)
    assert remedy in str(error.value)


@pytest.mark.parametrize(("every", "told"), [(0, True), (2, False)])
def test_a_stop_rule_that_looks_at_the_end_only_is_told(folder: Path, every: int, told: bool) -> None:
    stop = ["stages.2.rl.train.stop={metric: eval/success, at_least: 1}", f"eval.every={every}"]
    warnings = plan(load_recipe(str(folder), stop)).warnings
    said = [warning for warning in warnings if "it looks at the start and at the end only" in warning]
    assert bool(said) == told


def test_adapters_may_go_on_what_an_earlier_stage_built(folder: Path) -> None:
    plan(load_recipe(str(folder), ["stages.2.rl.train.lora={rank: 2}"]))
