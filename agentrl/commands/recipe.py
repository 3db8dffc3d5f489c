"""`agentrl recipe check`: everything that can be wrong before the first episode."""

from __future__ import annotations

import importlib.util

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.credit.registry import load_credit
from agentrl.curriculum.curriculum import Curriculum, load_parts
from agentrl.curriculum.task_source import load_tasks
from agentrl.distributed.launchers import check_launcher
from agentrl.reporters.registry import trackers
from agentrl.rewards.components import Component
from agentrl.rollout.builder import Parts, build
from agentrl.train.preflight.warnings import cautions
from agentrl.train.stages.preflight import check_stages
from agentrl.train.stages.stage import Stage


def check(name: str, overrides: list[str]) -> str:
    """Builds every part of a recipe. Returns what was found.

    Raises:
        AgentRLError: the first thing that is wrong.
    """
    recipe = load_recipe(name, overrides)
    trained = [parts for stage, parts in _stages(recipe) if stage.kind == "rl"]
    parts = build(recipe)
    for each in (parts, *trained):
        _check_tasks(each)
    tasks, credit = load_tasks(recipe.tasks, recipe.base, recipe.seed), load_credit(recipe.credit, recipe.base)
    parts.open_backend()
    check_launcher(recipe)
    trackers(recipe)
    model = "none (scripts only)"
    if recipe.model is not None:
        model = "from scratch" if recipe.model.scratch is not None else str(recipe.model.path)
        if recipe.model.scratch is None and importlib.util.find_spec("transformers") is not None:
            from agentrl.models.load import find_model

            model = str(find_model(str(recipe.model.path)))
    tools = ", ".join(definition["function"]["name"] for definition in parts.definitions) or "none"
    return (
        f"{recipe.name}: ok\n"
        f"  tasks    {len(tasks)}\n"
        f"  tools    {tools}{' (in a sandbox)' if parts.needs_sandbox else ''}\n"
        f"  rewards  {', '.join(map(_described, parts.rewards.components)) or 'none'}\n"
        f"  credit   {credit.estimator.name} {credit.settings.model_dump_json()}\n"
        f"  model    {model}\n"
        f"  scripts  {', '.join(recipe.scripts) or 'none'}"
        + ("\n  stages   " + ", ".join(f"{each.name} ({each.kind})" for each in recipe.stages) if recipe.stages else "")
        + "".join(f"\nwarning: {caution}" for each in trained for caution in cautions(each))
    )


def _stages(recipe: Recipe) -> list[tuple[Stage, Parts]]:
    """The stages of a recipe that trains, checked."""
    return check_stages(recipe) if recipe.stages or recipe.train is not None else []


def _check_tasks(parts: Parts) -> None:
    """Whether every task has what rewards, credit and curriculum read."""
    recipe = parts.recipe
    tasks = load_tasks(recipe.tasks, recipe.base, recipe.seed)
    if recipe.eval is not None and recipe.eval.tasks is not None:
        load_tasks(recipe.eval.tasks, recipe.base, recipe.seed)
    for task in tasks.tasks:
        for component in parts.rewards.components:
            component.check_task(task)
        if parts.answer_scorer is not None:
            parts.answer_scorer.golds(task)
    if recipe.train is not None:
        # Drawn once for every task: a part that reads what a task lacks says so here.
        curriculum = Curriculum(load_parts(recipe.curriculum, recipe.base, recipe.scripts), seed=0, iterations=1)
        curriculum.draw(tasks, len(tasks), recipe.train.group_size, recipe.agent.max_turns, iteration=0)
    parts.renderer(ByteTokenizer()).start(tasks.at(0).instruction)


def _described(component: Component) -> str:
    """A reward component with what a call of it occupies."""
    return component.name + (f" ({', '.join(component.costs)})" if component.costs else "")
