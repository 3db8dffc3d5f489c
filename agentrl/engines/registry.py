"""Engines by name, or by reference."""

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
"""What the constructor of an engine may ask for by name (docs/engines.md)."""

_BUILT_IN = {
    "torch": "agentrl.engines.embedded.engine:TorchEngine",
    "vllm": "agentrl.engines.vllm.engine:VLLMEngine",
    "openai": "agentrl.engines.openai:OpenAIEngine",
}


def _declared(engine: type) -> Declared:
    """Of a built-in: its keys in the section. The engine factory hands them over, each in its own way."""
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
    """Whether an engine of the user's own is one, and the way of the weights. Those that are built in are checked by
    their section.

    Raises:
        RecipeError: it is none, or a setting does not fit.
    """
    if is_reference(settings.use):
        ENGINES.chosen(settings, base)
    elif settings.use == "vllm":
        TRANSFERS.chosen(settings.transfer, base)


def samples_tokens(settings: EngineSettings, base: Path) -> bool:
    """Whether episodes of the engine may be trained on, as far as its class tells.

    Raises:
        RecipeError: it is no engine.
    """
    if not is_reference(settings.use):
        return settings.use != "openai"
    return bool(getattr(ENGINES.find(settings.use, base), "trainable", True))
