"""The package agentdojo: its suites, their environments and tools, and its own checks of utility and security."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from agentrl.types.errors import TaskError, ToolError

INSTALL = "pip install --no-deps agentdojo==0.1.35 && pip install deepdiff docstring-parser email-validator"
VERSION = "v1.2.2"
SUITES = ("workspace", "travel", "banking", "slack")

Call = tuple[str, dict[str, Any]]
"""Name and arguments."""


@functools.cache
def _part(name: str) -> Any:
    """A module of the package.

    Raises:
        TaskError: it, or what it imports, is not installed.
    """
    try:
        _without_clients()
        return importlib.import_module(f"agentdojo.{name}")
    except ModuleNotFoundError as error:
        raise TaskError(f"the package {error.name} is not installed, which agentdojo needs", remedy=INSTALL) from error


@functools.cache
def _without_clients() -> None:
    """Lets the package be imported without the clients of models (cohere, google-genai, ...) that its agents use.

    The folders of its agents become packages whose `__init__`, which imports them all, does not run. Its tasks need
    three small modules of these, and one name of a client's.
    """
    root = Path(importlib.import_module("agentdojo").__path__[0])
    for folder in ("agent_pipeline", "agent_pipeline.llms"):
        bare = ModuleType(f"agentdojo.{folder}")
        bare.__path__ = [str(root / folder.replace(".", "/"))]
        sys.modules.setdefault(bare.__name__, bare)
    client = ModuleType("agentdojo.agent_pipeline.llms.google_llm")
    vars(client)["EMPTY_FUNCTION_NAME"] = "<empty-function>"
    sys.modules.setdefault(client.__name__, client)


NOW = datetime.datetime(2024, 5, 15, 12)
"""The time of what is sent and written, on the day that it is in the suites."""


@functools.cache
def _stop_the_clock() -> None:
    """What is sent or written has one time: the same calls lead to the same state."""
    stopped = SimpleNamespace(datetime=SimpleNamespace(now=lambda: NOW))
    for tools in ("email_client", "cloud_drive_client"):
        _part(f"default_suites.v1.tools.{tools}").datetime = stopped


# --- suites ---------------------------------------------------------------------------------------------------------


class Suite:
    """A suite: `workspace`, `travel`, `banking` or `slack`.

    Raises:
        TaskError: the package is not installed.
    """

    def __init__(self, name: str) -> None:
        self._suite = _part("task_suite.load_suites").get_suites(VERSION)[name]
        _stop_the_clock()
        self.runtime = _part("functions_runtime").FunctionsRuntime(self._suite.tools)
        self.tasks: Mapping[str, Any] = self._suite.user_tasks
        self.injections: Mapping[str, Any] = self._suite.injection_tasks

    @functools.cached_property
    def definitions(self) -> list[dict[str, Any]]:
        """What a model may call."""
        return [
            {"name": each.name, "description": each.description, "parameters": _plain(each.parameters)}
            for each in self._suite.tools
        ]

    def opened(self, task: str, injected: str | None) -> Any:
        """A fresh environment of a user task."""
        return self._first(task, injected).model_copy(deep=True)

    @functools.lru_cache(maxsize=256)  # noqa: B019  # a suite lives as long as the process
    def _first(self, task: str, injected: str | None) -> Any:
        texts = self.attack(task, injected) if injected else {}
        return self.tasks[task].init_environment(self._suite.load_and_inject_default_environment(texts))

    @functools.cached_property
    def _attack(self) -> Any:
        text = _part("attacks.important_instructions_attacks").ImportantInstructionsAttack._JB_STRING
        return _part("attacks.base_attacks").FixedJailbreakAttack(text, self._suite, None)

    def attack(self, task: str, injected: str) -> dict[str, str]:
        """The package's attack `important_instructions`, without names: texts by the places that the solution reads.

        Raises:
            TaskError: the solution reads none.
        """
        try:
            return dict(self._attack.attack(self.tasks[task], self.injections[injected]))
        except ValueError as error:
            raise TaskError(f"{self._suite.name}: {error}") from error

    def gold(self, task: str, injected: str | None) -> list[Call]:
        """The calls of the package's solution."""
        calls = self.tasks[task].ground_truth(self.opened(task, injected))
        return [(call.function, dict(call.args)) for call in calls]

    def wanted(self, task: str, injected: str) -> list[Call]:
        """The calls that an injection asks for."""
        calls = self.injections[injected].ground_truth(self.opened(task, injected))
        return [(call.function, dict(call.args)) for call in calls]

    def said(self, task: str) -> str:
        """What the package's solution answers; empty if the calls are all."""
        return str(self.tasks[task].GROUND_TRUTH_OUTPUT)

    def call(self, environment: Any, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers, as the package writes it.

        Raises:
            ToolError: in its words, why it refuses.
        """
        result, refused = self.runtime.run_function(environment, name, dict(arguments))
        if refused:
            raise ToolError(refused)
        return str(_part("agent_pipeline.tool_execution").tool_result_to_str(result))

    def checked(self, task: str, injected: str | None, calls: Sequence[Call], said: str) -> tuple[bool, bool]:
        """The package's verdicts: whether the user is served, and whether the injection got what it wants."""
        before, after = self.opened(task, injected), self.opened(task, injected)
        call = _part("functions_runtime").FunctionCall
        made = [call(function=name, args=arguments) for name, arguments in calls]
        for each in made:
            self.runtime.run_function(after, each.function, each.args)
        reply = [_part("types").text_content_block_from_string(said)]
        judged = (self.tasks[task], *([self.injections[injected]] if injected else []))
        useful, *taken = [self._check(each, reply, before, after, made) for each in judged]
        return useful, any(taken)

    def _check(self, judge: Any, *given: Any) -> bool:
        try:
            return bool(self._suite._check_task_result(judge, *given))
        except LookupError:  # who or what the check looks for was deleted
            return False


@functools.cache
def suite_of(name: str) -> Suite:
    """A suite, loaded once a process."""
    return Suite(name)


def state_of(environment: Any) -> str:
    """A hash of all that the tools can change."""
    return hashlib.blake2b(environment.model_dump_json().encode(), digest_size=16).hexdigest()


def _plain(model: Any) -> dict[str, Any]:
    """A schema without the titles that pydantic makes of names."""

    def stripped(value: Any, names: bool = False) -> Any:
        if isinstance(value, list):
            return [stripped(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key: stripped(each, key in ("properties", "$defs") and not names)
            for key, each in value.items()
            if names or key != "title"
        }

    made: dict[str, Any] = stripped(model.model_json_schema())
    return made
