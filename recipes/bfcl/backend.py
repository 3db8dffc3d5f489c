"""The package bfcl-eval: its entries, its simulated APIs, and the verdict of its multi-turn checker."""

from __future__ import annotations

import ast
import contextlib
import copy
import decimal
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.types.errors import TaskError, ToolError

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23"

Call = tuple[str, dict[str, Any]]
"""Name and arguments."""

_ONE_AT_A_TIME = threading.Lock()
"""Some APIs answer with objects that belong to a module, and change them before."""


@functools.cache
def _package() -> Path:
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or found.origin is None:
        raise TaskError("the package bfcl-eval is not installed", remedy=INSTALL)
    return Path(found.origin).parent


def _part(name: str) -> Any:
    """A module of the package."""
    _package()
    return importlib.import_module(f"bfcl_eval.{name}")


# --- entries and definitions ----------------------------------------------------------------------------------------


@functools.cache
def entries(category: str) -> dict[str, dict[str, Any]]:
    """The 200 entries of a category by id, each with `gold`: the calls of every round.

    Raises:
        TaskError: the package is not installed, or there is no such category.
    """
    if category not in CATEGORIES:
        raise TaskError(f"there is no category {category!r}", remedy=f"there are: {', '.join(CATEGORIES)}")
    file = f"BFCL_v4_multi_turn_{category}.json"
    solved = {line["id"]: line["ground_truth"] for line in _lines(f"possible_answer/{file}")}
    found = {entry["id"]: entry for entry in _lines(file)}
    for id, entry in found.items():
        signatures = _signatures(tuple(entry["involved_classes"]))
        entry["gold"] = [[_parsed(call, signatures) for call in calls] for calls in solved[id]]
    return found


def entry_of(id: str) -> dict[str, Any]:
    """The entry of a task."""
    return entries(id.removeprefix("multi_turn_").rpartition("_")[0])[id]


def _lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_package() / "data" / path).read_text().splitlines()]


def _parsed(call: str, signatures: Mapping[str, inspect.Signature]) -> Call:
    """`cd(folder='a')` as name and arguments; positional ones get their names."""
    parsed = ast.parse(call, mode="eval").body
    assert isinstance(parsed, ast.Call)
    assert isinstance(parsed.func, ast.Name)
    given = [ast.literal_eval(value) for value in parsed.args]
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in parsed.keywords}
    return parsed.func.id, dict(signatures[parsed.func.id].bind(*given, **named).arguments)


@functools.cache
def _signatures(classes: tuple[str, ...]) -> dict[str, inspect.Signature]:
    made = {name: _api_class(name)() for name in classes}
    return {name: inspect.signature(getattr(made[owner], name)) for owner in classes for name in definitions(owner)}


@functools.cache
def definitions(api: str) -> dict[str, dict[str, Any]]:
    """What a model may call of an API, by name, with schemas in JSON's types."""
    files = _part("constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    described = _lines(f"multi_turn_func_doc/{files[api]}")
    return {
        each["name"]: {
            "name": each["name"],
            "description": each["description"],
            "parameters": _json_schema(each["parameters"]),
        }
        for each in described
    }


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with `dict`, `float` and `tuple` as JSON names them."""
    kinds: Mapping[str, str] = _part("constants.type_mappings").GORILLA_TO_OPENAPI
    made = {key: value for key, value in schema.items() if key in ("description", "enum", "default", "required")}
    made["type"] = kinds[schema.get("type", "string")]
    if "properties" in schema:
        made["properties"] = {name: _json_schema(each) for name, each in schema["properties"].items()}
    if isinstance(schema.get("items"), Mapping):
        made["items"] = _json_schema(schema["items"])
    return made


# --- the APIs -------------------------------------------------------------------------------------------------------


def _api_class(api: str) -> Any:
    config = _part("constants.executable_backend_config")
    _package()
    return getattr(importlib.import_module(config.CLASS_FILE_PATH_MAPPING[api]), api)


class Apis:
    """Fresh instances of the APIs of an entry."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.instances = {name: self._instance(entry, name) for name in entry["involved_classes"]}
        self.owners = {name: api for api in self.instances for name in definitions(api)}

    @staticmethod
    def _instance(entry: Mapping[str, Any], api: str) -> Any:
        made = _api_class(api)()
        if hasattr(made, "_load_scenario"):
            config = copy.deepcopy(entry["initial_config"].get(api, {}))
            made._load_scenario(config, long_context="long_context" in entry["id"])
        return copy.deepcopy(made)  # the bookings of long contexts belong to the module, and can be changed

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the function answers, in the package's words.

        Raises:
            ToolError: the function raised, or the arguments would keep it busy for ever.
        """
        _bounded(name, arguments)
        try:
            with _ONE_AT_A_TIME, _own_precision():
                return _text(getattr(self.instances[self.owners[name]], name)(**copy.deepcopy(dict(arguments))))
        except Exception as error:
            raise ToolError(str(error)) from error

    def key(self) -> str:
        """A hash of the attributes of all instances."""
        state = {api: _plain(instance) for api, instance in self.instances.items()}
        if "GorillaFileSystem" in self.instances:
            state["folder"] = self.instances["GorillaFileSystem"].pwd()
        return hashlib.blake2b(json.dumps(state, default=str).encode(), digest_size=16).hexdigest()


def _text(result: Any) -> str:
    """As the package makes text of a result."""
    if isinstance(result, dict):
        with contextlib.suppress(TypeError, ValueError):
            return json.dumps(result)
    return str(result)


MOST_DIGITS = 4300
"""Of a whole number: Python writes out no longer one."""
BOUNDS = {"precision": (1, 1000), "decimal_places": (-1000, 1000)}


def _bounded(name: str, arguments: Mapping[str, Any]) -> None:
    for argument, (low, high) in BOUNDS.items():
        if argument in arguments and not low <= arguments[argument] <= high:
            raise ToolError(f"{argument} must be between {low} and {high}")
    if name == "power":
        base, exponent = (arguments[each] for each in ("base", "exponent"))
        if isinstance(base, int) and isinstance(exponent, int):
            digits = exponent * math.log10(abs(base)) if base else 0
            if digits > MOST_DIGITS:
                raise ToolError("the result is too large")


@contextlib.contextmanager
def _own_precision() -> Iterator[None]:
    """The API of mathematics sets the precision of mpmath and decimal, which belongs to the whole process."""
    mpmath = importlib.import_module("mpmath")
    with mpmath.workdps(mpmath.mp.dps), decimal.localcontext():
        yield


def _plain(value: Any) -> Any:
    """Public attributes, with sorted keys. Folders know their parent, which would go round."""
    if isinstance(value, dict):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set):
        return sorted(map(str, value))
    if hasattr(value, "__dict__"):
        return _plain({k: v for k, v in vars(value).items() if not k.startswith("_") and k != "parent"})
    return value


# --- the verdict ----------------------------------------------------------------------------------------------------


def rounds_right(entry: Mapping[str, Any], gold: Sequence[Sequence[Call]], made: Sequence[Sequence[Call]]) -> int:
    """How many rounds are right before the first that is wrong, by the rules of the package's `multi_turn_checker`.

    After each round with gold calls, the policy has called something, its APIs are in the state of the gold ones, and
    what the gold calls answered is among what its calls have answered so far. A round without gold calls, in which
    something is missing, is right whatever was called: a wrong change shows in the next one.
    """
    checker = _part("eval_checker.multi_turn_eval.multi_turn_checker")
    mine, its = Apis(entry), Apis(entry)
    heard: list[str] = []
    for number, (wanted, calls) in enumerate(zip(gold, made, strict=False)):
        heard += [_said(mine, call) for call in calls]
        expected = [_said(its, call) for call in wanted]
        if not wanted:
            continue
        if not calls or not checker.state_checker(mine.instances, its.instances)["valid"]:
            return number
        if not checker.response_checker(heard, expected, number)["valid"]:
            return number
    return min(len(gold), len(made))


def _said(apis: Apis, call: Call) -> str:
    try:
        return apis.call(*call)
    except ToolError as error:
        return f"Error during execution: {error}"
