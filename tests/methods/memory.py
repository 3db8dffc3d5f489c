"""Methods with a text memory, with episodes that judge each other in words, and with several policies."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load_file

from agentrl.config.recipe import Recipe
from agentrl.curriculum.parts import Group
from agentrl.store.checkpoints import checkpoints
from agentrl.training.backends import TRAINERS
from agentrl.types.memory import TextMemory
from agentrl.types.task import Task
from tests.methods.proofs import Run
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
]
