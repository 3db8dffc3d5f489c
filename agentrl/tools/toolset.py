"""Selection of an episode's tools: the recipe's tools named by the task, and the methods they offer now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from agentrl.tools.base import Environment, Tool
from agentrl.tools.methods import ToolMethod, by_name, method, methods_of
from agentrl.tools.schema import defined_tool, inner_definition
from agentrl.types.errors import RecipeError, TaskError, nearest
from agentrl.types.task import Task


@dataclass(frozen=True)
class ToolEntry:
    """One entry of a recipe's `tools`.

    Attributes:
        name: name for tasks to select the whole entry: `files`, or `Shop` of `./task.py:Shop`.
        make: makes a fresh instance.
        methods: methods known before an instance is opened.
        environment: True for an `Environment`.
        late: True if its methods are known only once it is open.
        runs: True if it runs tools defined by tasks.
        needs_sandbox: `needs_sandbox` of the instance.
        brought: True for a tool of the episode's agent.
    """

    name: str
    make: Callable[[], Tool]
    methods: tuple[ToolMethod, ...]
    environment: bool
    late: bool
    runs: bool
    needs_sandbox: bool
    brought: bool = False

    @classmethod
    def of(cls, use: str, make: Callable[[], Tool]) -> ToolEntry:
        """Makes an entry; creates one instance to inspect."""
        instance, kind = make(), Environment
        environment = isinstance(instance, kind)
        late = environment and type(instance).tools is not kind.tools  # type: ignore[attr-defined]
        runs = environment and type(instance).call_tool is not kind.call_tool  # type: ignore[attr-defined]
        methods = tuple(methods_of(instance))
        return cls(use.rpartition(":")[2], make, methods, environment, late, runs, instance.needs_sandbox)

    @classmethod
    def of_agent(cls, instance: Tool) -> ToolEntry:
        """Makes the entry of an agent's own tool."""
        methods = tuple(methods_of(instance))
        return cls(
            type(instance).__name__, lambda: instance, methods, False, False, False, instance.needs_sandbox, True
        )


@dataclass(frozen=True)
class ToolSet:
    """Tools of a recipe.

    Raises:
        RecipeError: two tools have the same name.
    """

    entries: tuple[ToolEntry, ...] = ()

    def __post_init__(self) -> None:
        by_name(method for entry in self.entries if not entry.environment for method in entry.methods)

    @cached_property
    def definitions(self) -> list[dict[str, Any]]:
        """Definitions of the tools known before any is opened, each name once, for chat templates."""
        known = {each.name: each for entry in self.entries for each in entry.methods}
        return [each.definition() for each in known.values()]

    @cached_property
    def late(self) -> bool:
        """True if some tools are known only once they are open."""
        return any(entry.late or entry.runs for entry in self.entries)

    def make(self) -> list[Tool]:
        """Makes an instance of each entry, not opened."""
        return [entry.make() for entry in self.entries]

    def box(self, task: Task, own: Sequence[Tool] = ()) -> ToolBox:
        """Makes the tools of one episode, not opened.

        Args:
            own: tools of the agent; always included.

        Raises:
            TaskError: the task names an unknown tool, or defines one that no environment runs.
        """
        entries = [(entry, entry.make()) for entry in self.part(task)]
        return ToolBox([*entries, *((ToolEntry.of_agent(each), each) for each in own)], task)

    def check(self, task: Task) -> list[dict[str, Any]]:
        """Returns the definitions known before a task's episodes begin.

        Raises:
            TaskError: as `box`; or two tools have the same name, or a definition is invalid.
        """
        return [each.definition() for each in self.box(task).known().values()]

    def part(self, task: Task) -> Sequence[ToolEntry]:
        """Selects the entries of a task's episodes: all, unless the task names some.

        If it does: the entries with a named tool, and those that only prepare the sandbox. Environments are included
        unless the task names another one.

        Raises:
            TaskError: the task names an unknown tool, or defines one that no environment runs.
        """
        if task.tools is None:
            return self.entries
        names, defined = _names(task)
        entries = self._named(names)
        known = {name for entry in self.entries for name in (entry.name, *(each.name for each in entry.methods))}
        if not any(entry.late for entry in entries):
            _must_be_among(names, known, "the recipe has", task)
        if defined and not any(entry.runs for entry in entries):
            raise TaskError(
                f"it defines the tool {defined[0]!r}, and nothing in the recipe runs it",
                place=_place(task),
                remedy="define call_tool(self, name, arguments) in an Environment, or name tools of the recipe",
            )
        return entries

    def _named(self, names: Sequence[str]) -> list[ToolEntry]:
        named = [entry for entry in self.entries if _is_named(entry, names)]
        speakers = any(entry.environment for entry in named)
        return [
            entry
            for entry in self.entries
            if entry in named or (not speakers if entry.environment else not entry.methods)
        ]


class ToolBox:
    """Tools of one episode.

    Attributes:
        instances: tools in the order of the recipe; open them before `read`.
        changes: True if the offered methods may change from turn to turn.
        as_in_recipe: True if the tools are exactly those of the recipe.
    """

    def __init__(self, parts: Sequence[tuple[ToolEntry, Tool]], task: Task) -> None:
        self._parts, self._task = parts, task
        self.instances = [instance for _, instance in parts]
        self.changes = any(entry.late for entry, _ in parts)
        brought = any(entry.brought for entry, _ in parts)
        self.as_in_recipe = task.tools is None and not self.changes and not brought

    @property
    def environments(self) -> list[Environment]:
        """The `Environment` instances, in order."""
        return [instance for instance in self.instances if isinstance(instance, Environment)]

    def read(self) -> dict[str, ToolMethod]:
        """Returns by name the methods callable now. The tools must be open.

        Raises:
            TaskError: two tools have the same name.
            RecipeError: an environment offers an object that is not a tool.
        """
        return self._by_name(_offers(entry, instance) for entry, instance in self._parts)

    def known(self) -> dict[str, ToolMethod]:
        """Same as `read`, without methods known only once tools are open."""
        return self._by_name([] if entry.late else methods_of(instance) for entry, instance in self._parts)

    def check(self) -> None:
        """Checks just after opening that every tool named by the task is offered.

        Raises:
            TaskError: one is missing.
        """
        if self._task.tools is not None and self.changes:
            offered = [each.name for entry, instance in self._parts for each in _offers(entry, instance)]
            known = [*(entry.name for entry, _ in self._parts), *offered]
            _must_be_among(_names(self._task)[0], known, "its open tools offer", self._task)

    def _by_name(self, offers: Iterable[Sequence[ToolMethod]]) -> dict[str, ToolMethod]:
        found = [
            each
            for (entry, _), offered in zip(self._parts, offers, strict=True)
            for each in self._asked(entry, offered)
        ]
        try:
            return by_name([*found, *self._defined()])
        except RecipeError as error:
            raise TaskError(error.message, place=_place(self._task), remedy=error.remedy) from None

    def _asked(self, entry: ToolEntry, offered: Sequence[ToolMethod]) -> Sequence[ToolMethod]:
        names = None if self._task.tools is None else _names(self._task)[0]
        if names is None or entry.brought or entry.name in names:
            return offered
        return [each for each in offered if each.name in names]

    def _defined(self) -> Iterator[ToolMethod]:
        for item in self._task.tools or ():
            if isinstance(item, dict):
                runner = next(instance for entry, instance in self._parts if entry.runs)
                assert isinstance(runner, Environment)
                yield method(
                    runner, defined_tool(item, partial(runner.call_tool, str(inner_definition(item).get("name"))))
                )


def _offers(entry: ToolEntry, instance: Tool) -> Sequence[ToolMethod]:
    if not entry.late:  # a function tool is shared by all episodes
        return entry.methods if entry.methods and entry.methods[0].owner is instance else methods_of(instance)
    assert isinstance(instance, Environment)
    return [method(instance, each) for each in instance.tools()]


def _names(task: Task) -> tuple[list[str], list[str]]:
    """Returns the names of the tools that a task selects, and of those it defines."""
    given = task.tools or []
    defined = [inner_definition(item).get("name") for item in given if isinstance(item, dict)]
    return [item for item in given if isinstance(item, str)], [str(name) for name in defined]


def _must_be_among(names: Iterable[str], known: Collection[str], listed: str, task: Task) -> None:
    if (missing := next((name for name in names if name not in known), None)) is not None:
        raise TaskError(f"there is no tool {missing!r}", place=_place(task), remedy=nearest(missing, known, listed))


def _is_named(entry: ToolEntry, names: Sequence[str]) -> bool:
    return entry.name in names or any(each.name in names for each in entry.methods)


def _place(task: Task) -> str:
    return f"task {task.id!r}"
