"""The tasks of a recipe, in a seeded order that a counter resumes."""

from __future__ import annotations

import inspect
import itertools
import random
import string
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config.tasks import TaskSettings
from agentrl.registry.references import load_object
from agentrl.types.errors import AgentRLError, RecipeError, TaskError
from agentrl.types.jsonl import read_rows
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Task

MOST = 1_000_000
"""A generator that yields more tasks than this without a `limit` counts as endless."""


class TaskSource:
    """The tasks of a recipe, in order. Position k of an endless walk over them is a function of k alone, so a
    resumed run needs no cursor but its iteration."""

    def __init__(self, tasks: list[Task], *, shuffle: bool = False, seed: int = 0) -> None:
        self.tasks, self.shuffle, self.seed = tasks, shuffle, seed

    def __len__(self) -> int:
        return len(self.tasks)

    def at(self, position: int) -> Task:
        """The task at a position of the endless walk; every pass over the tasks has its own order if shuffled."""
        lap, index = divmod(position, len(self.tasks))
        return self.tasks[self._order(lap)[index]] if self.shuffle else self.tasks[index]

    def _order(self, lap: int) -> list[int]:
        order = list(range(len(self.tasks)))
        random.Random(derive_seed(self.seed, "lap", lap)).shuffle(order)
        return order


def load_tasks(settings: TaskSettings, base: Path, seed: int) -> TaskSource:
    """Loads and checks the tasks.

    Raises:
        TaskError: a task is wrong (with the file and line, or the position in the generator), there is no task, an id
            occurs twice, or one that is excluded does not occur.
        RecipeError: the source cannot be found or imported.
    """
    if settings.jsonl is None and settings.source is None:
        raise RecipeError(
            "the recipe has no tasks", place="tasks", remedy="tasks: {source: ./task.py:NAME}, or {jsonl: ./file.jsonl}"
        )
    found = _from_jsonl(settings, base) if settings.jsonl is not None else _from_callable(settings, base, seed)
    left_out: set[str] = set()
    tasks = list(itertools.islice(_without(settings.exclude, found, left_out), settings.limit or MOST + 1))
    where = settings.jsonl or settings.source
    # With a limit, or arguments that choose a split, the tasks of an id may not have come.
    if settings.limit is None and not settings.args and (stray := [i for i in settings.exclude if i not in left_out]):
        raise TaskError(f"{where} has no task {stray[0]!r}", place="tasks.exclude", remedy="leave it out")
    if len(tasks) > MOST:
        raise TaskError(f"{where} does not end", remedy="give tasks.limit")
    if not tasks:
        raise TaskError(f"{where} has no task")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"task id {task.id!r} comes twice", place=where, remedy="episode ids need unique task ids")
        seen.add(task.id)
    return TaskSource(tasks, shuffle=settings.shuffle, seed=seed)


def _without(exclude: Mapping[str, str], found: Iterator[Task], left_out: set[str]) -> Iterator[Task]:
    """The tasks that are not excluded; `left_out` takes the ids of the others."""
    for task in found:
        if task.id in exclude:
            left_out.add(task.id)
        else:
            yield task


def _from_callable(settings: TaskSettings, base: Path, seed: int) -> Iterator[Task]:
    assert settings.source is not None
    function = load_object(settings.source, base)
    if not callable(function):
        raise TaskError(f"{settings.source} is not a function that returns tasks")
    args = dict(settings.args)
    parameters = inspect.signature(function).parameters
    if "seed" in parameters:
        args.setdefault("seed", seed)
    unknown = [name for name in args if name not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise TaskError(
            f"{settings.source} takes no argument {unknown[0]!r}",
            place="tasks.args",
            remedy=f"it takes: {', '.join(parameters) or 'none'}",
        )
    for index, task in enumerate(_calling(settings.source, function, args)):
        if not isinstance(task, Task):
            raise TaskError(
                f"item {index} is a {type(task).__name__}, not a Task",
                place=settings.source,
                remedy='return Task.of("id", "instruction", key=value)',
            )
        yield task.checked()


def _calling(source: str, function: Any, args: dict[str, Any]) -> Iterator[Any]:
    try:
        yield from function(**args)
    except AgentRLError:
        raise
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(error)[-2:])
        raise TaskError(
            f"{type(error).__name__}: {error}\n{text}", place=source, remedy="fix the task source"
        ) from error


def _from_jsonl(settings: TaskSettings, base: Path) -> Iterator[Task]:
    assert settings.jsonl is not None
    assert settings.prompt is not None
    path = (base / settings.jsonl).resolve()
    fields = _fields(settings.prompt)
    for number, place, row in read_rows(path, "tasks.jsonl"):
        for name in [*fields, *filter(None, (settings.id, settings.tools, settings.sandbox, settings.images))]:
            if name not in row:
                raise TaskError(
                    f"the row has no field {name!r}",
                    place=place,
                    remedy=f"it has: {', '.join(row)}; the prompt is {settings.prompt!r} ({_BRACES})",
                )
        id = str(row[settings.id]) if settings.id else f"{path.stem}-{number}"
        try:
            yield _of_row(id, settings.prompt.format(**row), row, settings, path.parent)
        except TaskError as error:
            raise TaskError(error.message, place=place, remedy=error.remedy) from None
        except ValueError as error:  # {price:d} of what is no number
            raise TaskError(f"does not fit the prompt {settings.prompt!r}: {error}", place=place) from None


def _of_row(id: str, prompt: str, row: dict[str, Any], settings: TaskSettings, folder: Path) -> Task:
    tools, sandbox = (row[field] if field else None for field in (settings.tools, settings.sandbox))
    content: Any = prompt
    if settings.images:
        content = [prompt, *_images(row[settings.images], settings.images, folder)]
    instruction = [{"role": "user", "content": content}]
    made = Task(id=id, instruction=instruction, data=row, seed=row.get("seed", 0), tools=tools, sandbox=sandbox)
    return made.checked()


def _images(given: Any, field: str, folder: Path) -> list[Any]:
    """Parts of a row's images. Paths are relative to the file's folder."""
    listed = [] if given is None else given if isinstance(given, list) else [given]
    if not all(isinstance(each, str) for each in listed):
        raise TaskError(f"{field} is {given!r:.80}", remedy="a path, or a list of paths, relative to this file")
    return [{"type": "image", "image": each if each.startswith("data:") else str(folder / each)} for each in listed]


_BRACES = "{field} is replaced by the row's, braces of the text are written {{ and }}"


def _fields(prompt: str) -> list[str]:
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None]
    except ValueError as error:
        raise TaskError(f"{prompt!r}: {error}", place="tasks.prompt", remedy=_BRACES) from None
    if "" in fields:
        raise TaskError(f"{prompt!r} has a {{}} without a name", place="tasks.prompt", remedy=_BRACES)
    return fields
