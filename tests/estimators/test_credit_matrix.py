"""Every registered estimator by name in a recipe, from rollout to credit; those that need a model, through training."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.api.credit import credit
from agentrl.api.recipe_check import check
from agentrl.api.rollout import rollout
from agentrl.api.train import train
from agentrl.estimators.registry import ESTIMATORS
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import CreditError, RecipeError

CODE = """
from agentrl import Say, Task, Tool, ToolResult, tool

def counts():
    for k in range(4):
        yield Task.of(f"count{k}", f"Count to {k % 2 + 2}.", to=k % 2 + 2, answer=str(k % 2 + 2))

class Counter(Tool):
    async def open(self, task, sandbox): self.count, self.to = 0, task.data["to"]
    @tool
    async def add(self, by: int = 1) -> ToolResult:
        "Count on."
        self.count += by
        done = self.count >= self.to
        return ToolResult(str(self.count), done=done, answer=str(self.count) if done else None)
    def state_key(self): return str(self.count)

def exact(task, episode): return float(episode.answer == task.data["answer"])
def win_rate(task, episode): return 1.0 / len(episode.turns)
def process(task, episode) -> list[float]: return [0.5 + 0.1 * turn.index for turn in episode.turns]
def wrong(task, episode) -> list[float]: return [float(turn.index == 0) for turn in episode.turns]

def hasty(task, rng):
    while True:
        yield Say(calls=[("add", {"by": rng.randint(1, 3)})])
"""

RECIPE = """\
name: counting
tasks: ./task.py:counts
agent: {format: tags, max_turns: 6, describe_tools: false}
tools: [./task.py:Counter]
rewards:
  exact: ./task.py:exact
  win_rate: {use: ./task.py:win_rate, weight: 0}
  process: {use: ./task.py:process, weight: 0}
  wrong: {use: ./task.py:wrong, weight: 0}
scripts: {hasty: ./task.py:hasty}
model: {scratch: {hidden: 16, layers: 1, heads: 2, vocab_size: 300, max_context: 256}}
train: {iterations: 1, groups: 4, group_size: 4, minibatch: 16, lr: 1.0e-3}
"""

WITH_A_MODEL = {
    "igpo": [],
    "a2tgpo": [],
    "spro": [],
    "aem": [],
    "hcapo": [],
    "sweet": ["train.reward_model={objective: preference, reward: turn_means, lr: 1e-4}"],
    "gae": ["train.critic={}"],
    "ppr": ["train.critic={}"],
    "turn_gae": ["train.critic={}"],
    "bi_level_gae": ["train.critic={}"],
    "spa": ["train.critic={}"],
    "a_lol": ["train.critic={}"],
    "high_entropy": [],
    "istar": ["train.reward_model={lr: 1e-4, objective: preference, reference: policy}"],
    "implicit_prm": ["train.reward_model={lr: 1e-4}"],
    "grpo_care": ["train.ema_reference={}"],
}
"""What a recorded script cannot give, and the overrides under which training gives it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix")
    (folder / "task.py").write_text(CODE)
    (folder / "recipe.yaml").write_text(RECIPE)
    # GiGPO reads states: they are recorded for it, and for every other estimator.
    rollout(folder, 16, overrides=["credit.use=gigpo"], group_size=4, script="hasty", out=folder / "run")
    return folder


@pytest.mark.parametrize("name", [name for name in ESTIMATORS.built_in if name not in WITH_A_MODEL])
def test_recorded_episodes_are_credited(folder: Path, name: str) -> None:
    assert check(str(folder), [f"credit.use={name}"]).credit == name
    result = credit(folder / "run", name)
    assert len(result.credits) == 16
    assert any(any(each.turn_advantages) for each in result.credits)
    for each in result.credits:
        assert len(each.turn_advantages) == len(result.episodes[each.episode_id].turns)


@pytest.mark.slow
@pytest.mark.family("parts")
@pytest.mark.parametrize("name", WITH_A_MODEL)
def test_training_gives_what_a_record_lacks(folder: Path, name: str, tmp_path: Path) -> None:
    with pytest.raises(CreditError):
        credit(folder / "run", name)
    out = train(folder, overrides=[f"credit.use={name}", *WITH_A_MODEL[name]], out=tmp_path / "out")
    with RunDir.read(out.path) as run:
        credits = [run.credit(episode.id) for episode in run.episodes(split="train") if episode.scored]
        assert {credit.estimator for credit in credits if credit} == {name}
        assert all(credit is not None for credit in credits)


@pytest.mark.slow
@pytest.mark.family("parts")
@pytest.mark.parametrize("name", ["grpo", "reinforce_pp", "gigpo"])
def test_one_of_each_granularity_is_trained_on(folder: Path, name: str, tmp_path: Path) -> None:
    out = train(folder, overrides=[f"credit.use={name}"], out=tmp_path / "out")
    with RunDir.read(out.path) as run:
        assert [line["iteration"] for line in run.metrics() if line["split"] == "train"] == [1]


def test_an_estimator_of_the_users_own(folder: Path) -> None:
    (folder / "mine.py").write_text("def mine(table):\n    return table.step_reward\n")
    overrides = [f"credit.use={folder}/mine.py:mine"]
    assert check(str(folder), overrides).credit == "mine"


def test_unknown_names_and_settings_fail_at_the_check(folder: Path) -> None:
    with pytest.raises(RecipeError, match="no estimator 'rlo'") as caught:
        check(str(folder), ["credit.use=rlo"])
    assert "did you mean 'rloo'" in str(caught.value)
    with pytest.raises(RecipeError, match="no setting 'weigthing'") as caught:
        check(str(folder), ["credit.use=rloo", "credit.weigthing=turn"])
    assert "did you mean 'weighting'" in str(caught.value)


def test_win_rates_that_nothing_gives_fail_at_the_check(folder: Path) -> None:
    bare = folder.parent / f"{folder.name}-bare"
    bare.mkdir()
    (bare / "task.py").write_text(CODE)
    (bare / "recipe.yaml").write_text(RECIPE.replace("win_rate: {use", "other: {use"))
    with pytest.raises(CreditError, match="no reward component is named win_rate"):
        check(str(bare), ["credit.use=pref_grpo"])
