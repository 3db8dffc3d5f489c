"""Registry of engines: the values of `engine.use`."""

from __future__ import annotations

import inspect

from agentrl.config.recipe import Recipe
from agentrl.registry.registry import Loaded, Registry, subclass_of
from agentrl.registry.settings import Declared, NoSettings, declared
from agentrl.types.engine import Engine

FILLED = ("tokenizer", "renderer", "definitions", "model_folder", "loaded")
"""Objects that an engine's constructor can request as parameters (docs/engines.md)."""


def _declared(engine: type[Engine]) -> Declared:
    """Settings of an engine: its `Settings` if it opens itself, else as its constructor declares them."""
    if inspect.getattr_static(engine, "open") is inspect.getattr_static(Engine, "open"):
        return declared(engine, filled=FILLED)
    return Declared(getattr(engine, "Settings", NoSettings), as_written=True)


ENGINES: Registry[type[Engine]] = Registry(
    kind="engine",
    group="engines",
    key="engine",
    built_in={
        "torch": "agentrl.engines.embedded.engine:TorchEngine",
        "vllm": "agentrl.engines.vllm.engine:VLLMEngine",
        "openai": "agentrl.engines.openai:OpenAIEngine",
    },
    wanted="an Engine subclass (agentrl.types.engine)",
    accept=subclass_of(Engine),  # type: ignore[type-abstract]
    contracts=[Engine],
    filled=FILLED,
    declares=_declared,
)


def chosen_engine(recipe: Recipe) -> Loaded[type[Engine]]:
    """Returns the engine class that a recipe names, with its settings.

    Raises:
        RecipeError: it is not an engine, or a setting is wrong.
    """
    return ENGINES.chosen(recipe.engine, recipe.base)
