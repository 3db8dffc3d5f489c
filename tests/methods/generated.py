"""Methods whose tasks a function generates."""

from __future__ import annotations

import random
import re
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.curriculum.task_source import TaskSource, load_tasks
from agentrl.rollouts.builder import build
from agentrl.training.stages.stage import stages_of
from agentrl.types.task import Task
from tests.methods.curricula import graded, stages_learned
from tests.methods.played import curriculum, drawn, group
from tests.methods.proofs import Method


def risen(recipe: Recipe) -> list[Any]:
    """The levels that are drawn at first, after none of 16 groups was solved, and after all of 16 were; then what
    four answers to a formula earn that two assignments satisfy."""
    found, by_level = curriculum(recipe), [[Task.of(f"{k}/{n}", "Go.", level=k) for n in "ab"] for k in range(3)]
    source, levels = TaskSource([task for own in by_level for task in own], shuffle=False, seed=0), []
    for at, rewards in enumerate(([0] * 16, [1] * 16, [])):
        levels.append(drawn(found, source, 2, at)[0][0])
        found.observe([group(by_level[0][0], reward) for reward in rewards], at)
    formula = Task.of("t", "Satisfy AB & !A!B.", clauses=["AB", "!A!B"], variables=2)
    return [*levels, *(graded(recipe, formula, bits) for bits in ("10", "01", "11", "1"))]


def depths(recipe: Recipe) -> list[list[int]]:
    """The depths of the tasks that are shown, that train, and that are evaluated; then the terms of the latter two."""
    assert recipe.eval is not None
    (shown, trained) = (build(each.recipe).tasks.tasks for each in stages_of(recipe))
    settings = recipe.eval.tasks
    assert settings is not None
    evaluated = load_tasks(settings, recipe.base, recipe.seed).tasks
    terms, more = ({task.id.partition("/")[2] for task in own} for own in (trained, evaluated))
    return [*(sorted({t.data["depth"] for t in own}) for own in (shown, trained, evaluated)), sorted(terms & more)]


def of_stages(recipe: Recipe, key: str) -> list[list[Any]]:
    """The values of a field of the tasks' data, stage by stage."""
    return [sorted({task.data[key] for task in build(each.recipe).tasks.tasks}) for each in stages_of(recipe)]


def chained(recipe: Recipe) -> list[Any]:
    """The links of each stage; the links that lead from the start of a text to a question about the answer's person;
    and the rewards of an answer that holds the gold one, of a part of it, of another, and of none.
    """
    text, gold = next(
        (t.instruction[0]["content"], t.data["answer"]) for t in build(stages_of(recipe)[-1].recipe).tasks.tasks
    )
    pairs, at, steps = dict(re.findall(r"(\w\w): (\S+)\.", text)), text.rpartition("Start: ")[2], 0
    while at in pairs:
        at, steps = pairs[at], steps + 1
    found = re.search(rf"{at[:-1]} is (\w+)", text)
    task = Task.of("t", "Ana is red. Start: Ana?", answer="red")
    said = [graded(stages_of(recipe)[-1].recipe, task, words) for words in ("The colour is red", "re", "blue", " ")]
    return [of_stages(recipe, "links"), steps, found is not None and found[1] == gold, said]


def on_a_graph(recipe: Recipe) -> list[Any]:
    """The kinds of questions that train, and the answers about a path of three nodes and one that is alone."""
    answer = build(recipe).scripts["oracle"].__globals__["answer"]
    edges = [(0, 1), (1, 2)]
    told = [
        answer(kind, edges, 0, b) for kind, b in (("degree", 3), ("connected", 2), ("connected", 3), ("distance", 2))
    ]
    return [of_stages(recipe, "kind")[-1], [*told, answer("distance", edges, 0, 3)]]


def graded_alike(recipe: Recipe) -> list[Any]:
    """The kinds of exercises of each stage, and in the first that reinforces the rewards of orders and numbers."""
    first = next(each.recipe for each in stages_of(recipe) if each.kind == "rl")
    cases = [("BCA", "BCA"), ("BCA", "BAC"), ("BCA", "ABC"), ("14", "15"), ("14", "4")]
    said = [graded(first, Task.of("t", "Fill.", answer=gold), answer) for gold, answer in cases]
    return [of_stages(recipe, "kind"), said]


def backtracks(recipe: Recipe) -> list[int]:
    """Returns the largest number of steps back in demonstrations of the warm start, by script; its own comes first."""
    assert recipe.warm_start is not None
    task, scripts = Task.of("t", "3 4 2 = 5", numbers=[3, 4, 2], target=5), build(recipe).scripts
    own = [recipe.warm_start.script, "one", "three"]
    return [max(_nos(scripts[name](task, random.Random(seed))) for seed in range(20)) for name in own]


def _nos(play: Any) -> int:
    return sum(said.text.count(" no.") for said in play)


METHODS = [
    # None of 16 groups, then all; rewards of two assignments that satisfy, of one that does not, of half of one.
    Method(
        "saturn",
        lambda run: run.metric("levels_level"),
        risen,
        ["0", "0", "1", 1.0, 1.0, 0.0, 0.0],
        small=("curriculum=[{levels: {at: 0.05, groups: 4}}]",),
        sized=("warm_start.steps=300",),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "compose",
        lambda run: [each.task.data["depth"] for each in run.played],
        depths,
        [[1], [1, 2], [2, 3], []],
        sized=("stages.0.sft.steps=200", "stages.1.rl.train.iterations=2", "train.groups=8"),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "loongrl",
        lambda run: [each.task.data["links"] for each in run.played],
        chained,
        [[[0], [0], [2], [2]], 2, True, [1.0, 1.0, 0.0, 0.0]],
        sized=("stages.0.sft.steps=150", "stages.1.rl.train.iterations=2"),
        small=("stages.2.rl.train.iterations=2", "stages.3.rl.train.iterations=2"),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "g1",
        lambda run: [each.task.data["kind"] for each in run.played],
        on_a_graph,
        [["connected", "degree", "distance"], ["1", "yes", "no", "2", "none"]],
        sized=("stages.0.sft.steps=150", "stages.1.rl.train.iterations=2", "train.groups=8"),
        warmed=None,
        learns=stages_learned,
    ),
    # An order with one step, two steps in another place; one digit of two; a number of another length.
    Method(
        "mr-rlvr",
        lambda run: [each.task.data["kind"] for each in run.played],
        graded_alike,
        [[["fill", "order", "solve"], ["fill", "order"], ["solve"]], [1.0, 0.333, 0.0, 0.5, 0.0]],
        sized=("stages.0.sft.steps=150", "stages.1.rl.train.iterations=2"),
        small=("stages.2.rl.train.iterations=2",),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "backtracking",
        lambda run: [each.turns[0].text.count("no.") for each in run.played],
        backtracks,
        [1, 1, 3],
        sized=("warm_start.steps=400",),
        warmed=None,
        learns=stages_learned,
    ),
]
