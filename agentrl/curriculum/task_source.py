"""The tasks of a recipe, in a seeded order that a counter resumes."""

from __future__ import annotations

import inspect
import itertools
import random
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.rows import tasks_of_rows
from agentrl.curriculum.task_sources import SOURCES
from agentrl.registry.installed import is_foreign
from agentrl.registry.references import is_reference, load_object, resolve_references
from agentrl.types.errors import AgentRLError, RecipeError, TaskError
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Task

MOST = 1_000_000
"""A generator that yields more tasks than this without a `limit` counts as endless."""


class TaskSource:
    """The tasks of a recipe, in order. Position k of an endless walk over them is a function of k alone, so a
    resumed run needs only its iteration.

    Attributes:
        skipped: reasons for tasks that the source itself left out, by task.
    """

    def __init__(
        self, tasks: list[Task], *, shuffle: bool = False, seed: int = 0, skipped: Mapping[str, str] | None = None
    ) -> None:
        self.tasks, self.shuffle, self.seed = tasks, shuffle, seed
        self.skipped = dict(skipped or {})

    def told_of_skipped(self) -> list[str]:
        """Each reason with the tasks that it left out, those with most first."""
        return _told(self.skipped)

    def __len__(self) -> int:
        return len(self.tasks)

    def at(self, position: int) -> Task:
        """Returns the task at a position of the endless walk; if shuffled, every pass has another order."""
        lap, index = divmod(position, len(self.tasks))
        return self.tasks[self._order(lap)[index]] if self.shuffle else self.tasks[index]

    def _order(self, lap: int) -> list[int]:
        order = list(range(len(self.tasks)))
        random.Random(derive_seed(self.seed, "lap", lap)).shuffle(order)
        return order


def load_tasks(settings: TaskSettings, base: Path, seed: int) -> TaskSource:
    """Loads and checks the tasks.

    Raises:
        TaskError: a task is wrong (with the file and line, or the position in the generator), the source is empty, an
            id occurs twice, or an excluded one does not occur.
        RecipeError: the source cannot be found or imported.
    """
    skipped: dict[str, str] = {}
    if (rows := settings.rows) is not None:
        found = tasks_of_rows(rows, settings, base)
    elif settings.source is not None:
        found = _from_callable(settings.source, settings, base, seed, skipped)
    else:
        raise RecipeError(
            "the recipe has no tasks", place="tasks", remedy="tasks: {source: ./task.py:NAME}, or {jsonl: ./file.jsonl}"
        )
    used: set[str] = set()
    tasks = list(itertools.islice(_without(settings, found, used), settings.limit or MOST + 1))
    where = getattr(settings, settings.rows or "source")
    # With a limit, or arguments that choose a split, the tasks of an id may not have come.
    if settings.limit is None and not settings.args and (stray := [i for i in settings.exclude if i not in used]):
        raise TaskError(f"{where} has no task {stray[0]!r}", place="tasks.exclude", remedy="leave it out")
    if len(tasks) > MOST:
        raise TaskError(f"{where} does not end", remedy="give tasks.limit")
    if not tasks:
        raise TaskError("; ".join([f"{where} has no task", *_told(skipped)]))
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"task id {task.id!r} comes twice", place=where, remedy="episode ids need unique task ids")
        seen.add(task.id)
    return TaskSource(tasks, shuffle=settings.shuffle, seed=seed, skipped=skipped)


def _told(skipped: Mapping[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for id, reason in skipped.items():
        by_reason.setdefault(reason, []).append(id)
    return [
        f"left out {len(ids)}, because {reason}: {', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''}"
        for reason, ids in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    ]


def _without(settings: TaskSettings, found: Iterator[Task], used: set[str]) -> Iterator[Task]:
    """Filters out excluded tasks; adds the matching keys of `exclude` to `used`."""
    for task in found:
        if (key := settings.excluded_by(task.id)) is not None:
            used.add(key)
        else:
            yield task


def _from_callable(
    source: str, settings: TaskSettings, base: Path, seed: int, skipped: dict[str, str]
) -> Iterator[Task]:
    function, args = _function(source, base), dict(settings.args)
    parameters = inspect.signature(function).parameters
    filled: dict[str, Any] = {}
    if not is_foreign(source, SOURCES.group):
        args = resolve_references(args, base)
        filled = {"base": base, "excluded_by": settings.excluded_by, "skipped": skipped}
    own = [name for name in parameters if name not in filled]
    unknown = [name for name in args if name not in own]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise TaskError(
            f"{source} takes no argument {unknown[0]!r}",
            place="tasks.args",
            remedy=f"it takes: {', '.join(own) or 'none'}",
        )
    if "seed" in parameters:
        args.setdefault("seed", seed)
    args |= {name: value for name, value in filled.items() if name in parameters}
    for index, task in enumerate(_calling(source, function, args)):
        if not isinstance(task, Task):
            raise TaskError(
                f"item {index} is a {type(task).__name__}, not a Task",
                place=source,
                remedy='return Task.of("id", "instruction", key=value)',
            )
        yield task.checked()


def _function(source: str, base: Path) -> Any:
    """Loads the source of a recipe, a user function or a built-in."""
    if not is_reference(source):
        return SOURCES.find(source, base)
    function = load_object(source, base)
    if not callable(function):
        raise TaskError(f"{source} is not a function that returns tasks")
    return function


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
