"""Pairs of keys that make no sense together: `recipe check` refuses each, and names both."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.api.recipe_check import check
from agentrl.types.errors import RecipeError

CODE = """
from agentrl import Say, Task, Tool, tool

def tasks(sources="ab", said="Go."):
    for k in range(4):
        yield Task.of(f"t{k}", said or [], source=sources[k % len(sources)], hint="left then right", noise=0.0)

class Door(Tool):
    def __init__(self, noisy: bool = False): pass
    @tool
    async def open_door(self, side: str) -> str:
        return side
    def state_key(self): return ""

def right(task, episode): return 1.0

def script(task, rng):
    yield Say("Gone.")
"""

RECIPE = """\
name: demo
tasks: ./task.py:tasks
tools: [./task.py:Door]
rewards: {right: ./task.py:right}
scripts: {script: ./task.py:script}
model: {scratch: {hidden: 16, layers: 2, heads: 2, vocab_size: 300, max_context: 256}}
train: {groups: 2, group_size: 4}
"""

ONE = "train.group_size=1"
RL = "{name: a, rl: {train: {iterations: 1, group_size: %s}}}"
DPO = "{name: b, preference: {run: a, loss: %s}}"
SIZE = "train.group_size"

PAIRS = [
    (["curriculum=[dapo]", ONE], "curriculum.0", SIZE, "those of one episode are"),
    (["curriculum=[zero_variance]", ONE], "curriculum.0", SIZE, "drops groups whose episodes are equal"),
    (["rewards.majority_vote={}", ONE], "rewards.majority_vote", SIZE, "compares the episodes of a group"),
    (["rewards.diversity={}", ONE], "rewards.diversity", SIZE, "compares the episodes of a group"),
    (["train.loss=pacs", ONE], "train.loss", SIZE, "compares the episodes of a group"),
    (["train.loss=pacs", "credit=gigpo"], "train.loss", "credit", "what gigpo gives to each turn is lost"),
    (["train.loss=nft", "credit=returns"], "train.loss", "credit", "nft reads outcomes of episodes"),
    (["credit=nsr", "curriculum=[dapo]"], "curriculum.0", "credit", "nsr learns from groups in which all"),
    (["credit=w_reinforce", "curriculum=[zero_variance]"], "curriculum.0", "credit", "zero_variance drops them"),
    (
        ["rewards.right.then=[{forward: {false_negative: 0.2}}]", "credit=dr_grpo"],
        "rewards.right.then", "credit", "dr_grpo takes the group's mean off again",
    ),
    (
        ["rewards.right.then=[{backward: {false_positive: 0.1}}]", "credit=grpo"],
        "rewards.right.then", "credit", "backward changes all rewards alike",
    ),
    (
        ["curriculum=[{entropy_target: {start: 0.8}}]", "sampling.temperature=0.6"],
        "curriculum.0.start", "sampling.temperature", "from 0.8 on, and 0.6 is never used",
    ),
    (
        ["curriculum=[dart_successes]", "credit={use: gagpo, decay: 0.5}", "train.importance={high: 1}"],
        "curriculum.0", "credit.decay", "count them",
    ),
    (["curriculum=[dart_rollouts, scaling_inter]"], "curriculum.0", "curriculum.1", "replaces the limit of turns"),
    (["curriculum=[expert_budget, scaling_inter]"], "curriculum.0", "curriculum.1", "replaces the limit of turns"),
    (["curriculum=[scaling_inter, scaling_inter]"], "curriculum.0", "curriculum.1", "replaces the limit of turns"),
    (["curriculum=[seele]", "tasks.args.said=''"], "curriculum.0", "tasks", "task 't0' has none"),
    (["curriculum=[dump]", "tasks.args.sources=a"], "curriculum.0.key", "tasks", "all tasks have the source 'a'"),
    (["curriculum=[recap]", "tasks.args.sources=a"], "curriculum.0.key", "tasks", "all tasks have the source 'a'"),
    (["curriculum=[{zerosearch: {key: fog}}]"], "curriculum.0.key", "tools", "the code of no tool contains 'fog'"),
    (
        [f"stages=[{RL % 1}, {DPO % 'dpo'}]"],
        "stages.1.preference.run", "stages.0.rl.train.group_size", "a pair is of two episodes of a group",
    ),
    (
        [f"stages=[{{name: a, sft: script}}, {DPO % 'dpo'}]"],
        "stages.1.preference.run", "stages.0.sft.script", "each demonstration of a is a group of its own",
    ),
    (
        ["curriculum=[{dart_successes: {stage: before}}]", "train.importance={high: 1}"],
        "curriculum.0.stage", "stages", "'before', which is no rl stage before this one",
    ),
]  # fmt: skip

SENSIBLE = [
    ["curriculum=[dapo]"],
    ["curriculum=[dapo]", ONE, "agent={use: tree_agent, forks: 3}"],
    ["rewards.majority_vote={}"],
    ["train.loss=pacs", "credit=grpo"],
    ["credit=nsr"],
    ["rewards.right.then=[{backward: {false_positive: 0.1}}]", "credit=dr_grpo"],
    ["rewards.right.then=[{forward: {false_negative: 0.2}}]", "credit=reinforce_pp"],
    ["curriculum=[{entropy_target: {start: 0.6}}]", "sampling.temperature=0.6"],
    ["curriculum=[entropy_target]"],
    ["curriculum=[{scaling_inter: {max_turns: [2, 4], every: 2}}, dart_rollouts]"],
    ["curriculum=[seele]"],
    ["curriculum=[dump]"],
    ["curriculum=[{zerosearch: {key: noisy}}]"],
    [f"stages=[{RL % 2}, {DPO % 'dpo'}]"],
    [f"stages=[{RL % 1}, {DPO % 'kto'}]"],
    [
        f"stages=[{RL % 2}, {{name: c, rl: {{curriculum: [{{dart_successes: {{stage: a}}}}]}}}}]",
        "train.importance={high: 1}",
    ],
]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return str(tmp_path)


@pytest.mark.parametrize(("overrides", "first", "second", "why"), PAIRS, ids=[" ".join(each[0]) for each in PAIRS])
def test_a_pair_that_makes_no_sense_is_refused(
    folder: str, overrides: list[str], first: str, second: str, why: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        check(folder, overrides)
    assert f"{first} and {second} make no sense together" in refused.value.message
    assert why in refused.value.message
    assert first in (refused.value.place or "")
    assert refused.value.remedy


@pytest.mark.parametrize("overrides", SENSIBLE, ids=" ".join)
def test_the_same_keys_are_allowed_where_they_make_sense(folder: str, overrides: list[str]) -> None:
    check(folder, overrides)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["curriculum=[{limr: {passes: 4}}]", "train.iterations=8"], "limr selects after 4 passes over 4 tasks"),
        (["curriculum=[of_level]", "train.iterations=2"], "of_level selects after 1 passes over 4 tasks"),
        (["curriculum=[{scaling_inter: {every: 30}}]", "train.iterations=20"], "acts every 30 iterations"),
        (["curriculum=[{rorecomp: {every: 4}}]", "train.iterations=3", "train.importance={}"], "curriculum.0.every=1"),
    ],
)
def test_a_part_that_never_acts_gets_a_warning(folder: str, overrides: list[str], told: str) -> None:
    warned = "\n".join(check(folder, overrides).warnings)
    assert told in warned
    assert "it never does" in warned
    assert "never does" not in "\n".join(check(folder, [*overrides, "train.iterations=60"]).warnings)
