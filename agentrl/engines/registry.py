"""Registry of engines: the values of `engine.use`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, create_model

from agentrl.config.engine import KEYS, EngineSettings
from agentrl.engines.vllm.transfer import TRANSFERS
from agentrl.registry.references import is_reference
from agentrl.registry.registry import Registry, any_class
from agentrl.registry.settings import Declared, declared
from agentrl.types.engine import Engine

FILLED = ("tokenizer", "renderer", "definitions", "model_folder", "loaded")
"""Objects that an engine's constructor can request as parameters (docs/engines.md)."""

_BUILT_IN = {
    "torch": "agentrl.engines.embedded.engine:TorchEngine",
    "vllm": "agentrl.engines.vllm.engine:VLLMEngine",
    "openai": "agentrl.engines.openai:OpenAIEngine",
}


def _declared(engine: type) -> Declared:
    """Settings of an engine class. Those of a built-in engine are its keys in the recipe's `engine` section."""
    names = {reference: name for name, reference in _BUILT_IN.items()}
    name = names.get(f"{engine.__module__}:{engine.__qualname__}")
    if name is None:
        return declared(engine, filled=FILLED)
    fields: dict[str, Any] = {
        key: (each.annotation, each) for key, each in EngineSettings.model_fields.items() if key in KEYS[name]
    }
    return Declared(create_model("Settings", __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields))


ENGINES: Registry[type] = Registry(
    kind="engine",
    key="engine",
    built_in=_BUILT_IN,
    wanted="a class with the methods and attributes of agentrl.types.engine.Engine",
    accept=any_class,
    contracts=[Engine],
    filled=FILLED,
    declares=_declared,
)


def check_engine(settings: EngineSettings, base: Path) -> None:
    """Checks a user-defined engine, or the weight transfer of vLLM. `EngineSettings` checks the built-in engines.

    Raises:
        RecipeError: the class is not an engine or transfer, or a setting is wrong.
    """
    if is_reference(settings.use):
        ENGINES.chosen(settings, base)
    elif settings.use == "vllm":
        TRANSFERS.chosen(settings.transfer, base)


def samples_tokens(settings: EngineSettings, base: Path) -> bool:
    """Returns True if episodes of the engine are trainable, according to its class.

    Raises:
        RecipeError: the class is not an engine.
    """
    if not is_reference(settings.use):
        return settings.use != "openai"
    return bool(getattr(ENGINES.find(settings.use, base), "trainable", True))
