"""Methods with a text memory, with episodes that judge each other in words, and with several policies."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load_file

from agentrl import Say
from agentrl.config.recipe import Recipe
from agentrl.curriculum.parts import Group
from agentrl.rewards.groups import score_group
from agentrl.store.checkpoints import about, checkpoints
from agentrl.training.backends import TRAINERS
from agentrl.training.stages.stage import stages_of
from agentrl.types.memory import TextMemory
from agentrl.types.task import Task
from tests.methods.curricula import stages_learned
from tests.methods.played import rewards_of
from tests.methods.proofs import Method, Run
from tests.methods.roles import both_learned, rolled
from tests.methods.stub_api import Asking, between, said
from tests.rewards.make import make_episode, turn

# --- what a run has -------------------------------------------------------------------------------------------------


def openings(run: Run) -> list[str]:
    """By episode: its system message, or nothing."""
    firsts = [each.prompt[0] for each in run.played]
    return [str(first["content"]) if first["role"] == "system" else "" for first in firsts]


def memories(run: Run) -> list[TextMemory]:
    """The memory of every checkpoint."""
    found = [TextMemory.load(folder) for folder in checkpoints(run.path / "checkpoints")]
    return [memory for memory in found if memory is not None]


def remembered(run: Run) -> None:
    """Asserts that the stored text changed, that the next prompt contains it, and that no weight changed."""
    second = [text for each, text in zip(run.played, openings(run), strict=True) if each.iteration == 1]
    first = next(memory for memory in memories(run) if memory.version == 1)
    assert first.entries
    assert all(entry in text for entry in first.entries.values() for text in second)
    assert run.began is not None
    before = load_file(run.began / "model.safetensors")
    for folder in checkpoints(run.path / "checkpoints"):
        after = load_file(folder / "model.safetensors")
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in before)


# --- what a recipe makes of written episodes ------------------------------------------------------------------------


def group(name: str, *rewards: float, **data: Any) -> Group:
    """Episodes of one task with these rewards; each says its reward."""
    task = Task.of(name, f"What is {name}?", **data)
    played = [make_episode(task, turn(text=f"I say {reward:g}"), reward=reward) for reward in rewards]
    return Group(name, task, [msgspec.structs.replace(each, id=f"{name}{k}") for k, each in enumerate(played)])


def changes(recipe: Recipe, groups: Sequence[Group]) -> list[Any]:
    """The changes of an empty memory that a recipe's trainer makes of groups."""
    assert recipe.train is not None
    chosen = TRAINERS.chosen(recipe.train.backend, recipe.base)
    if not chosen.plug_in.capabilities.memory:
        return []
    trainer: Any = chosen.make(job=SimpleNamespace(recipe=recipe))
    return [
        None if each is None else (each.operation, each.id, each.text) for each in asyncio.run(trainer.write(groups, 0))
    ]


def compared(recipe: Recipe) -> list[Any]:
    """Of two groups with different rewards, and one without."""
    return changes(recipe, [group("a", 1, 0, answer="7"), group("b", 1, 1), group("c", 0, 0.5, answer="9")])


def writer(body: Any) -> str:
    """A model that compares: an experience names the attempts' rewards, and a merged change the experiences."""
    text = said(body)
    if "Summarise its attempt" in text:
        return f"{between(text, 'attempt')}, expected {between(text, 'answer_expected')}"
    if "several times" in text:
        found = re.findall(r"I say (\S+), expected (\S+)", text)
        return f"<experiences>\n1. {' '.join(map(' of '.join, found))}\n</experiences>"
    proposed = re.findall(r'"content": "([^"]*)"', between(text, "proposed"))
    content = " and ".join(proposed) if "<proposed>" in text else between(text, "new")
    return f"```json\n{json.dumps([{'operation': 'ADD', 'id': None, 'content': content}])}\n```"


def voted(recipe: Recipe) -> list[Any]:
    """Of four episodes with three members: who agrees with the elected answer."""
    told = {"policy": "AAAA", "second": "BBCD", "third": "BBBE"}
    task = Task.of("t", "Which?", answer="A")
    played = [
        make_episode(task, turn(text="A"), answer="A", info={"answers": {name: said[k] for name, said in told.items()}})
        for k in range(4)
    ]
    scores = asyncio.run(score_group(rewards_of(recipe), played))
    return [[score.components[name] for score in scores] for name in ("agrees", "second_agrees")]


def paid(recipe: Recipe) -> dict[str, float | None]:
    """The payoffs of a game in which the first agent contributes, and the second does not."""
    (played,) = rolled(recipe, "free_rider", 1, ["agent.agents=[policy, policy]"])
    return {name: context.outcome for name, context in played.contexts.items() if name != "main"}


def crafted(recipe: Recipe) -> list[Any]:
    """The sub-goals of an episode that obtains sticks, and what the memory takes from it and another one."""
    (played,) = rolled(recipe, "oracle", 1, ["tasks.args.items=[stick]"])
    groups = [Group("g", played.task, [played, played])]
    return [played.info["sub_goals"], changes(recipe, groups)]


def steve(body: Any) -> str:
    """A model that says what the text knowledge says, acts by it, and sums plans up as the first of them."""
    text = next((str(m["content"]) for m in reversed(body["messages"]) if "\nWhat do " in str(m["content"])), "")
    if text:
        count = int(re.findall(r"What do (\d+)", text)[0])
        rounds = -(-count // int(re.findall(r"(\d+) at a time", text)[0]))
        tools = re.findall(r"(\d+) (\w+) \(stays\)", text)
        needs = re.findall(r"(\d+) (\w+)(?=[,.])", text.partition("Needs:")[2].partition("\n")[0])
        lines = [f"{n} {name}" for n, name in tools] + [f"{int(n) * rounds} {name}" for n, name in needs]
        return "\n".join(lines) or "nothing"
    last = said(body)
    if "plans:" in last:
        return last.splitlines()[1]
    asked = next(str(m["content"]) for m in reversed(body["messages"]) if "Sub-goal: " in str(m["content"]))
    verb, item = re.findall(r"(\w+) it,", asked)[0:1] or ["mine"], re.findall(r"obtain \d+ (\w+)", asked)[0]
    return f'<tool_call>\n{{"name": "{verb[0]}", "arguments": {{"item": "{item}"}}}}\n</tool_call>'


def restarted(run: Run) -> None:
    """Asserts that both stages took steps, and that the second one started from the best checkpoint of the first."""
    stages_learned(run)
    rated = {
        line["iteration"]: line["success"]
        for line in run.reader.metrics()
        if line.get("stage") == "first" and line["split"] == "eval"
    }
    best = max(rated, key=rated.__getitem__)
    pins = about(checkpoints(run.path / "checkpoints")[-1])["pins"]
    assert pins["reference"] == f"01-first-{best:06d}"


def planned(run: Run) -> None:
    """Asserts that the memory has plans after an iteration, that episodes of the next saw them, and that no weights
    are kept."""
    first = next(memory for memory in memories(run) if memory.version == 1)
    assert "log (common): mine log" in first.entries.values()
    assert all(each.info["recalled"] for each in run.played if each.iteration == 1)
    assert all(each.reward == 1 for each in run.played)
    assert not list(run.path.rglob("*.safetensors"))


QUERIES = {"candidate 1": "SELECT count(*) FROM album", "candidate 2": "SELECT 1 AS one, 2 AS two"}
SCORES = {
    "score 1.0": "8",
    "score 1.1": "10 of 10",
    "score 1.2": "9",
    "score 2.0": "3",
    "score 2.1": "?",
    "score 2.2": "5",
}


def coder(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Writes two queries that run among four, and scores them."""
    yield Say(QUERIES.get(context) or SCORES.get(context) or "SELECT FROM WHERE nothing")


def evaluated(recipe: Recipe) -> list[Any]:
    """The mean scores of the queries of `coder`, the chosen one, its reward; and what the second stage starts from."""
    best = [stage.recipe.train.keep.best for stage in stages_of(recipe) if stage.kind == "rl" and stage.recipe.train]
    one = ["agent.always=true", f"scripts.coder={__name__}:coder", "tasks.args={kinds: [count_rows]}"]
    played = rolled(recipe, "coder", 8, one)
    found = next(each for each in played if str(each.task.data["sql"]).lower().endswith("from album"))
    return [found.info["verbal"], found.answer, found.components.get("sql_partial"), *best]


SUMS = (
    "agent={max_turns: 2, format: tags, describe_tools: false, system: null}", "tools=[calculator]",
    "tasks.args={kinds: [sums], n: 8}", "sampling={max_tokens: 48}", "rewards={maths: {form: value}}",
)  # fmt: skip
"""Overrides: the sums of math-python-learn, for the policy of its warm start."""
BY_HEART = (
    "warm_start.script=oracle", "warm_start.episodes=8", "warm_start.steps=120", "warm_start.batch=8",
    "tasks.args.n=8", "model.scratch.max_context=1024",
    "train.iterations=1", "train.groups=1", "train.group_size=2", "train.minibatch=2", "eval=null",
)  # fmt: skip

ADDERS = (
    "model.scratch.max_context=512", "warm_start.script=guesser", "warm_start.episodes=64", "warm_start.steps=150",
    "tasks.args.n=16", "train.iterations=1", "train.groups=1", "train.group_size=2", "train.minibatch=2", "eval=null",
)  # fmt: skip
"""Overrides of a warm start in which a policy learns the form of an answer, and some sums."""
PAIR = ("train.lora.rank=4", "policies.second.lora.rank=4", "train.lr=2e-3", "tasks.args.n=16")

METHODS = [
    # Two of three groups have different rewards. Each gives an experience, and they become one addition.
    Asking(
        "training-free-grpo",
        openings,
        compared,
        [("add", None, "1. 1 of 7 0 of 7 and 1. 0 of 9 0.5 of 9")],
        answer=writer,
        asks=("train.backend.model",),
        small=("train.backend.model.api_key_env=null",),
        sized=SUMS,
        start="recipes/math-python/learn.yaml",
        warmed=BY_HEART,
        learns=remembered,
    ),
    # Consistencies 1, 1/2 and 3/4: A has 4 votes of weight 1, B 2 of weight 1/2 and 3 of weight 3/4, which is 3.25.
    # Five unweighted votes would elect B. Alone, the second member elects B.
    Method(
        "rlccf",
        lambda run: [[each.components[name] for name in ("agrees", "second_agrees")] for each in run.played],
        voted,
        [[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]],
        sized=PAIR,
        warmed=ADDERS,
        learns=both_learned,
    ),
    # One of two contributes: both share 1.5 / 2. Each says 18 of 64 characters; the first has the bonus.
    Method(
        "mac-spgg",
        lambda run: [each.info["contributions"] for each in run.played],
        paid,
        {"agent 0": 0.75 - 18 / 64 + 0.5, "agent 1": 0.75 - 18 / 64},
        sized=PAIR,
        warmed=ADDERS,
        learns=both_learned,
    ),
    # Sticks need planks, and those a log. Each sub-goal is reached by one action; two episodes give each plan twice.
    Asking(
        "gitm",
        lambda run: [each.info["recalled"] for each in run.played],
        crafted,
        [
            [["log", 1], ["planks", 2], ["stick", 1]],
            [("add", None, "log: mine log"), ("add", None, "planks: craft planks"), ("add", None, "stick: craft stick")]
            * 2,
        ],
        answer=steve,
        asks=("engine.urls",),
        kept=("engine.urls",),
        sized=("tasks.args.items=[planks, stick, crafting_table, wooden_pickaxe]",),
        warmed=None,
        learns=planned,
    ),
    # Means of 8, 10, 9 and of 3, 5; the first returns all of the gold result.
    Method(
        "paverl-sql",
        lambda run: [each.info["verbal"] for each in run.reader.episodes(split="eval")],
        evaluated,
        [[[1, 9.0], [2, 4.0]], "SELECT count(*) FROM album", 10.0, "eval/success", None],
        sized=(
            "stages.0.sft.steps=150",
            "stages.1.rl.train.iterations=2",
            "stages.2.rl.train.iterations=2",
            "eval={episodes: 4, every: 1}",
            "model.scratch.max_context=512",
        ),
        warmed=None,
        learns=restarted,
    ),
]
