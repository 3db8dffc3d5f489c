"""Checks that every task has the data for rewards, credit and curriculum, and existing tools and sandboxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.curriculum.curriculum import Curriculum
from agentrl.curriculum.task_source import TaskSource
from agentrl.engines.registry import chosen_engine
from agentrl.rollouts.builder import Parts
from agentrl.sandbox.registry import BACKENDS
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.training.batch.privileged import reference_of
from agentrl.types.errors import AgentRLError, TaskError
from agentrl.types.parts.content import image_parts
from agentrl.types.parts.intake import cannot_see
from agentrl.types.sandbox import Backend
from agentrl.types.task import Task


def check_tasks(parts: Parts) -> list[str]:
    """Checks the tasks of a recipe, those of its evaluation included.

    Returns:
        Names of the tools that are known before any is opened, including those that tasks define.

    Raises:
        AgentRLError: the first error, with the task's id.
    """
    recipe = parts.recipe
    tasks = parts.tasks
    sources = list(dict.fromkeys([tasks, parts.eval_tasks]))
    for task in (task for source in sources for task in source.tasks):
        for component in parts.rewards.of(task).components:
            component.check_task(task)
    for task in tasks.tasks:
        if parts.answer_scorer is not None:
            parts.answer_scorer.golds(task)
        if (model := recipe.train and recipe.train.reward_model) and model.sees is not None:
            reference_of(task, model.sees)
    if recipe.train is not None:
        # Drawn once for every task: a part that reads missing data of a task fails here.
        curriculum = Curriculum(parts.make_curriculum(), seed=0, iterations=1)
        curriculum.draw(tasks, len(tasks), recipe.train.group_size, recipe.agent.max_turns, iteration=0)
    renderer = parts.renderer(ByteTokenizer())
    for source in sources:
        _check_data(parts, source)
        _check_images(parts, source)
    renderer.start(parts.shown(tasks.at(0)).instruction)
    names = dict.fromkeys(definition["function"]["name"] for definition in parts.definitions)
    for source in sources:
        names |= dict.fromkeys(_check_tools(parts, renderer, source))
    _check_sandboxes(parts, [task for source in sources for task in source.tasks if task.sandbox])
    return list(names)


def _check_tools(parts: Parts, renderer: Renderer, source: TaskSource) -> Iterator[str]:
    own = [task for task in source.tasks if task.tools is not None]
    for task in [*source.tasks[:1], *own]:
        with _named(task):
            definitions = parts.tools.check(task)
        if task.tools is not None:
            with _named(task):
                renderer.for_tools(definitions).start(parts.shown(task).instruction)
        yield from (definition["function"]["name"] for definition in definitions)


def _check_data(parts: Parts, source: TaskSource) -> None:
    """Asks the tools of each task whether it has the data that they need. One instance of a tool is asked for all."""
    made = {id(entry): entry.make() for entry in parts.tools.entries}
    for task in source.tasks:
        for entry in parts.tools.part(task):
            with _named(task):
                made[id(entry)].check_task(task)


def _check_images(parts: Parts, source: TaskSource) -> None:
    """Reads the images of all tasks, and refuses them where the recipe's model would be shown them and cannot see."""
    recipe = parts.recipe
    for task in source.tasks:
        with _named(task):
            shown = any(image_parts(parts.shown(task).instruction))
        if shown and recipe.model is not None and not chosen_engine(recipe).plug_in.sees_images(recipe):
            raise cannot_see(recipe.engine.use, f"engine.use (task {task.id!r})")


def _check_sandboxes(parts: Parts, tasks: Sequence[Task]) -> None:
    """Asks a backend once for each kind of sandbox, ignoring its files."""
    settings, specs = parts.recipe.sandbox, TaskSpecs(parts.recipe.sandbox.spec)
    known = [settings.spec.model_copy(update=_CONTENT)]
    backend: Backend | None = None
    for task in tasks:
        _must_have_one(parts, task)
        spec = specs.of(task).model_copy(update=_CONTENT)
        if spec not in known:
            known.append(spec)
            backend = backend or BACKENDS.chosen(settings, parts.recipe.base).make()
            with _named(task):
                backend.preflight(spec)


def _must_have_one(parts: Parts, task: Task) -> None:
    """Checks that a task that changes the sandbox has one, in its episodes or rewards."""
    rewards = parts.rewards.needs_sandbox or parts.rewards.needs_fresh_sandbox
    needed = rewards or parts.recipe.agent.needs_sandbox
    if not needed and not any(entry.needs_sandbox for entry in parts.tools.part(task)):
        raise TaskError(
            "it changes the sandbox, and its episodes have none",
            place=f"task {task.id!r}",
            remedy="add a tool that needs one (shell), or a class with needs_sandbox = True",
        )


_CONTENT: dict[str, Any] = {"files": {}, "env": {}, "setup": ()}


@contextmanager
def _named(task: Task) -> Iterator[None]:
    """Names the task in errors that do not."""
    try:
        yield
    except TaskError:
        raise
    except (AgentRLError, ValueError) as error:
        message = error.message if isinstance(error, AgentRLError) else str(error)
        place = f"task {task.id!r}, {error.place}" if isinstance(error, AgentRLError) and error.place else None
        remedy = error.remedy if isinstance(error, AgentRLError) else None
        raise TaskError(message, place=place or f"task {task.id!r}", remedy=remedy) from None
