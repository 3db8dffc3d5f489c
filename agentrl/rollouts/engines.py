"""Opens the engine of a recipe, built-in or user-defined, for a loaded model or a model path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer, Tokenizer
from agentrl.config.engine import EngineSettings
from agentrl.engines.opening import EngineOpening, named_model
from agentrl.engines.registry import chosen_engine
from agentrl.models.load import LoadedModel, chat_tokenizer, sees
from agentrl.registry.installed import is_foreign
from agentrl.rollouts.builder import Parts
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError
from agentrl.types.memory import TextMemory

LaunchServers = Callable[..., Any]
"""Launches servers on a recipe's cluster: `agentrl.distributed.servers.LaunchedServers`."""


def open_engine(parts: Parts, launch_servers: LaunchServers | None = None) -> tuple[Engine, Renderer]:
    """Opens the engine that samples the recipe's model; returns it and its renderer.

    Args:
        launch_servers: launches servers on a cluster, if the recipe asks for it.

    Raises:
        RecipeError: the recipe has no model, or training has not built it yet.
        EngineError: servers cannot be started.
    """
    opening = opening_of(parts, launch_servers=launch_servers)
    engine = opening.engine.plug_in.open(opening)
    engine.memory = memory_of(parts)
    return engine, opening.renderer


def memory_of(parts: Parts) -> TextMemory | None:
    """Returns the text memory that the model of a recipe was saved with; None without one."""
    model = parts.recipe.model
    return None if model is None or model.path is None else TextMemory.load(Path(model.path))


def engine_of(parts: Parts, loaded: LoadedModel, launch_servers: LaunchServers | None = None) -> Engine:
    """Makes the engine for training a loaded model. Weights are updated with `update`.

    Args:
        launch_servers: see `open_engine`.

    Raises:
        RecipeError: the engine gives text only.
    """
    opening = opening_of(parts, loaded.chat(), loaded=loaded, launch_servers=launch_servers)
    engine = opening.engine.plug_in.open(opening)
    if not engine.trainable and loaded.model is not None:
        raise not_trainable(parts.recipe.engine)
    return engine


def attach(parts: Parts, urls: Sequence[str], tokenizer: Tokenizer) -> tuple[Engine, Renderer]:
    """Makes an engine of the recipe for running servers. Starts none."""
    opening = opening_of(parts, tokenizer, urls=urls)
    return opening.engine.plug_in.open(opening), opening.renderer


def opening_of(parts: Parts, tokenizer: Tokenizer | None = None, **given: Any) -> EngineOpening:
    """Returns what a recipe gives its engine.

    Args:
        tokenizer: default: that of the recipe's model, or of text for an engine that needs no model.
        given: further attributes of `EngineOpening`.

    Raises:
        RecipeError: the engine needs the recipe's model, and there is none, or training has not built it yet.
    """
    recipe, engine = parts.recipe, chosen_engine(parts.recipe)
    if tokenizer is None:
        weights = engine.plug_in.weights
        as_text = weights == "own" or (weights == "any" and recipe.model is None)
        tokenizer = ByteTokenizer() if as_text else chat_tokenizer(named_model(recipe))
    needed = partial(needed_context, parts)
    return EngineOpening(engine, recipe, tokenizer, parts.definitions, parts.renderer, needed, **given)


async def start_to_sample(engine: Engine, note: Callable[[str], None] = lambda line: None) -> None:
    """Starts an engine that samples a model without training it.

    Args:
        note: called with a line if the engine falls back to a slower computation.

    Raises:
        EngineError: the engine does not start, or has weights of an earlier training.
    """
    await engine.start()
    note_fallback(engine, note)
    await engine.refuse_trained()


def note_fallback(engine: Engine, note: Callable[[str], None]) -> None:
    """Calls `note` if the engine cannot compute its model in batches."""
    if engine.one_by_one is not None:
        note(f"engine: episodes are decoded one by one, because {engine.one_by_one}; engine.use: vllm would be faster")


def needed_context(parts: Parts) -> int | None:
    """Returns an upper bound of an episode's tokens: the prompt, and for each turn a reply of `sampling.max_tokens`
    and, with tools, one result of `limits.observation_chars`. It assumes one token per character of a result, which
    leaves room for several calls per turn, and one token per byte of a prompt.

    Returns:
        None if user code decides: a user-defined agent or environment, or a curriculum; or for a vision model.
    """
    recipe, tools = parts.recipe, parts.tools
    if is_foreign(recipe.agent.use, "agents") or recipe.curriculum or (recipe.model is not None and sees(recipe.model)):
        return None
    tasks = [*parts.tasks.tasks, *parts.eval_tasks.tasks]
    longest = max(len(msgspec.json.encode(task.instruction)) for task in tasks)
    if any(entry.environment for entry in tools.entries):
        return None
    own = [tools.check(task) for task in tasks if task.tools is not None]
    beside = max(len(msgspec.json.encode([recipe.agent.system, shown])) for shown in [tools.definitions, *own])
    observed = recipe.limits.observation_chars if recipe.tools else 0
    return longest + beside + TEMPLATE + recipe.agent.max_turns * (recipe.sampling.max_tokens + observed + TEMPLATE)


TEMPLATE = 256
"""Maximum tokens that a chat template adds to a message, including instructions for the call format."""


def not_trainable(settings: EngineSettings) -> RecipeError:
    """Returns the error for a training with an engine that returns text only."""
    return RecipeError(
        f"engine.use is {settings.use}, which gives text only: what it samples cannot be trained on",
        place="engine",
        remedy="train with engine.use torch or vllm; agentrl rollout and agentrl eval take any",
    )
