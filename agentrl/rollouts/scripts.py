"""The scripted policies of a recipe: its section `scripts`, and `random`."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say, Script
from agentrl.registry.references import load_object, wrong_kind
from agentrl.types.parts import schemas
from agentrl.types.parts.content import text_of
from agentrl.types.parts.schemas import Argument
from agentrl.types.task import Message, Task


def load_scripts(references: Mapping[str, str], base: Path) -> dict[str, Script]:
    """Loads the scripts of a recipe, by name, and adds `random`, which every recipe has.

    Args:
        references: `./task.py:oracle` by name.
        base: folder of the recipe.

    Raises:
        RecipeError: a script does not exist, or is not a generator function.
    """
    loaded = {name: _loaded(name, reference, base) for name, reference in references.items()}
    return {**loaded, "random": loaded.get("random", random_script)}


def _loaded(name: str, reference: str, base: Path) -> Script:
    script: Script = load_object(reference, base)
    if not inspect.isgeneratorfunction(script):
        kind = "a generator function: def oracle(task, rng): ... yield Say(...)"
        raise wrong_kind(reference, base, f"scripts.{name}", kind, inspect.isgeneratorfunction)
    return script


def random_script(task: Task, rng: random.Random, tools: list[dict[str, Any]]) -> Generator[Say, list[Message], None]:
    """Policy that calls random tools with random arguments of their schema.

    Without tools it replies with a few words of the conversation.
    """
    words = " ".join(text_of(message["content"]) for message in task.instruction).split()
    while True:
        observed = yield _random_reply(tools, words, rng)
        words += " ".join(text_of(message["content"]) for message in observed).split()[:200]


def _random_reply(tools: list[dict[str, Any]], words: list[str], rng: random.Random) -> Say:
    if not tools:
        return Say(" ".join(rng.choices(words or ["nothing"], k=rng.randint(1, 4))))
    function = rng.choice(tools)["function"]
    root = function["parameters"]
    arguments = {name: Argument(root, schema).merged for name, schema in schemas.arguments(root).items()}
    return Say(calls=[(function["name"], {k: _random_value(v, words, rng) for k, v in arguments.items()})])


def _random_value(schema: dict[str, Any], words: list[str], rng: random.Random) -> Any:
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    low, high = _bounds(schema)
    makers: dict[str, Callable[[], Any]] = {
        "integer": lambda: rng.randint(math.ceil(low), math.floor(high)),
        "number": lambda: round(rng.uniform(low, high), 2),
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [],
        "object": lambda: {},
    }
    return makers.get(schema.get("type", "string"), lambda: rng.choice(words or ["nothing"]))()


def _bounds(schema: dict[str, Any]) -> tuple[float, float]:
    """Returns the range for random numbers: the schema's, by default 0 to 9."""
    step = schema.get("type") == "integer"
    low = schema["exclusiveMinimum"] + step if "exclusiveMinimum" in schema else schema.get("minimum")
    high = schema["exclusiveMaximum"] - step if "exclusiveMaximum" in schema else schema.get("maximum")
    if low is None:
        low = 0 if high is None else min(0, high)
    return low, low + 9 if high is None else high
