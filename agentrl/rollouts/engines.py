"""Opens the engine of a recipe, built-in or user-defined, for a loaded model or a model path."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer, Tokenizer
from agentrl.config.engine import EngineSettings
from agentrl.config.model import ModelSettings
from agentrl.config.recipe import Recipe
from agentrl.config.scale import ScaleSettings
from agentrl.engines.registry import ENGINES
from agentrl.models.load import LoadedModel, chat_tokenizer, load_model, model_folder, on_cuda, sees
from agentrl.registry.references import is_reference
from agentrl.rollouts.builder import Parts
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError, needs

if TYPE_CHECKING:
    from agentrl.engines.vllm.launch import ServerGroup, Serving

    LaunchServers = Callable[[Recipe, Path, Serving], ServerGroup]
    """Launches servers on a recipe's cluster: `agentrl.distributed.servers.LaunchedServers`."""


def open_engine(parts: Parts, launch_servers: LaunchServers | None = None) -> tuple[Engine, Renderer]:
    """Opens the engine that samples the recipe's model; returns it and its renderer.

    Args:
        launch_servers: launches vLLM servers on a cluster, if the recipe asks for it.

    Raises:
        RecipeError: the recipe has no model, or training has not built it yet.
        EngineError: servers cannot be started.
    """
    return OPENERS.get(parts.recipe.engine.use, _open_own)(parts, launch_servers)


def engine_of(parts: Parts, loaded: LoadedModel, launch_servers: LaunchServers | None = None) -> Engine:
    """Makes the engine for training a loaded model. Weights are updated with `update`.

    Args:
        launch_servers: see `open_engine`.
    """
    recipe, tokenizer = parts.recipe, loaded.chat()
    if is_reference(recipe.engine.use):
        return _own(recipe, parts.renderer(tokenizer), parts.definitions, loaded)
    if recipe.engine.use == "vllm":
        return _vllm(parts, loaded, tokenizer, launch_servers)
    import copy

    import torch

    from agentrl.models.load import cast_weights

    model = cast_weights(copy.deepcopy(loaded.model), getattr(torch, recipe.required_model.dtype))
    return _torch(recipe, model, loaded, tokenizer)


async def start_to_sample(engine: Engine, note: Callable[[str], None] = lambda line: None) -> None:
    """Starts an engine that samples a model without training it.

    Args:
        note: called with a line if the engine falls back to a slower computation.

    Raises:
        EngineError: the engine does not start, or its servers have weights of an earlier training.
    """
    from agentrl.engines.vllm.engine import VLLMEngine

    await engine.start()
    note_fallback(engine, note)
    if isinstance(engine, VLLMEngine):
        await engine.refuse_trained()


def note_fallback(engine: Engine, note: Callable[[str], None]) -> None:
    """Calls `note` if the embedded engine cannot compute its model in batches."""
    if (reason := getattr(engine, "one_by_one", None)) is not None:
        note(f"engine: episodes are decoded one by one, because {reason}; engine.use: vllm would be faster")


def attach(recipe: Recipe, urls: Sequence[str], renderer: Renderer, definitions: list[dict[str, Any]]) -> Engine:
    """Makes an engine for running servers: those at `urls`, or the recipe's API. Starts none."""
    if recipe.engine.use == "openai":
        from agentrl.engines.openai import OpenAIEngine

        return OpenAIEngine(recipe.engine, renderer, definitions)
    from agentrl.engines.vllm.engine import VLLMEngine

    return VLLMEngine(recipe.engine, urls, tokenizer=renderer.tokenizer, room=recipe.sampling.max_tokens)


def serving(parts: Parts, *, trains: bool = False) -> Serving:
    """Returns the settings of vLLM servers for the recipe's model.

    Args:
        trains: the servers are for training in this process, which may use GPUs, too.
    """
    from agentrl.engines.vllm.images import FAMILIES
    from agentrl.engines.vllm.launch import Serving
    from agentrl.engines.vllm.transfer import backend_of

    recipe = parts.recipe
    model = recipe.required_model
    lora = recipe.train.lora if recipe.train is not None else None
    needed, allowed = needed_context(parts), _allowed_context(model)
    context = needed if needed is not None and allowed is not None and needed < allowed else None
    gpus = _trainer_gpus(recipe.scale) if trains and on_cuda(model) else 0
    transfer = backend_of(recipe.engine, recipe.base)
    return Serving(model.dtype, context, None if lora is None else lora.rank, gpus, transfer, sees(model, FAMILIES))


def check_servers(recipe: Recipe, *, cuda: bool) -> None:
    """Checks that a training can start its servers, before the first episode.

    Args:
        cuda: whether the trainer uses GPUs.

    Raises:
        EngineError: the interpreter has no vLLM, or the GPUs are missing, too few, or used by the trainer.
    """
    from agentrl.engines.vllm.launch import Serving, prepare

    if recipe.engine.use == "vllm" and not recipe.engine.urls and not recipe.launches_servers:
        gpus = _trainer_gpus(recipe.scale) if cuda else 0
        prepare(recipe.engine, Serving(recipe.required_model.dtype, trainer_gpus=gpus))


def needed_context(parts: Parts) -> int | None:
    """Returns an upper bound of an episode's tokens: the prompt, and for each turn a reply of `sampling.max_tokens`
    and, with tools, one result of `limits.observation_chars`. It assumes one token per character of a result, which
    leaves room for several calls per turn, and one token per byte of a prompt.

    Returns:
        None if user code decides: a user-defined agent or environment, or a curriculum; or for a vision model.
    """
    recipe, tools = parts.recipe, parts.tools
    if is_reference(recipe.agent.use) or recipe.curriculum or (recipe.model is not None and sees(recipe.model)):
        return None
    tasks = [*parts.tasks.tasks, *parts.eval_tasks.tasks]
    longest = max(len(msgspec.json.encode(task.instruction)) for task in tasks)
    if any(entry.environment for entry in tools.entries):
        return None
    own = [tools.check(task) for task in tasks if task.tools is not None]
    beside = max(len(msgspec.json.encode([recipe.agent.system, shown])) for shown in [tools.definitions, *own])
    observed = recipe.limits.observation_chars if recipe.tools else 0
    return longest + beside + TEMPLATE + recipe.agent.max_turns * (recipe.sampling.max_tokens + observed + TEMPLATE)


def _allowed_context(model: ModelSettings) -> int | None:
    """Returns the maximum context of the model; None if its configuration has no such value."""
    if model.scratch is not None:
        return model.scratch.max_context
    config = json.loads((model_folder(model) / "config.json").read_bytes())
    found = config.get("text_config", config).get("max_position_embeddings")
    return None if found is None else int(found)


def _trainer_gpus(scale: ScaleSettings) -> int:
    """Returns the number of this machine's GPUs that a trainer on GPUs uses: the first ones, one per rank."""
    return max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), scale.trainer_ranks)


def named_model(recipe: Recipe) -> ModelSettings:
    """Returns the recipe's model, which must exist in a folder.

    Raises:
        RecipeError: the recipe has no model, or training has not built it yet.
    """
    model = recipe.required_model
    if model.scratch is not None:
        raise RecipeError(
            "the recipe's model is built by training",
            place="model.scratch",
            remedy="agentrl train first, then agentrl eval RUN, or --set 'model={path: RUN/checkpoints/it-...}'",
        )
    return model


def _open_torch(parts: Parts, _: LaunchServers | None) -> tuple[Engine, Renderer]:
    with needs("train"):
        loaded = load_model(named_model(parts.recipe), seed=parts.recipe.seed)
    renderer = parts.renderer(loaded.chat())
    return _torch(parts.recipe, loaded.model, loaded, renderer.tokenizer), renderer


def _open_vllm(parts: Parts, launch_servers: LaunchServers | None) -> tuple[Engine, Renderer]:
    renderer = parts.renderer(chat_tokenizer(named_model(parts.recipe)))
    return _vllm(parts, None, renderer.tokenizer, launch_servers), renderer


def _open_openai(parts: Parts, _: LaunchServers | None) -> tuple[Engine, Renderer]:
    from agentrl.engines.openai import OpenAIEngine

    renderer = parts.renderer(ByteTokenizer())
    return OpenAIEngine(parts.recipe.engine, renderer, parts.definitions), renderer


def _open_own(parts: Parts, _: LaunchServers | None) -> tuple[Engine, Renderer]:
    recipe = parts.recipe
    known = recipe.model is not None
    tokenizer = chat_tokenizer(named_model(recipe)) if known else ByteTokenizer()
    renderer = parts.renderer(tokenizer)
    return _own(recipe, renderer, parts.definitions, None), renderer


TEMPLATE = 256
"""Maximum tokens that a chat template adds to a message, including instructions for the call format."""

OPENERS: dict[str, Callable[[Parts, LaunchServers | None], tuple[Engine, Renderer]]] = {
    "torch": _open_torch,
    "vllm": _open_vllm,
    "openai": _open_openai,
}


def _own(recipe: Recipe, renderer: Renderer, definitions: list[dict[str, Any]], loaded: LoadedModel | None) -> Engine:
    """Makes a user-defined engine.

    Raises:
        RecipeError: it lacks an attribute of `Engine`, or is not trainable in a training.
    """
    found = ENGINES.chosen(recipe.engine, recipe.base)
    folder = None if loaded is not None or recipe.model is None else model_folder(recipe.model)
    engine: Engine = found.make(
        tokenizer=renderer.tokenizer, renderer=renderer, definitions=definitions, model_folder=folder, loaded=loaded
    )
    if lacking := [name for name in Engine.__annotations__ if not hasattr(engine, name)]:
        raise RecipeError(
            f"{found.name} lacks {', '.join(lacking)}", place="engine", remedy=f"what is wanted: {ENGINES.wanted}"
        )
    if loaded is not None and not engine.trainable:
        raise not_trainable(recipe.engine)
    return engine


def not_trainable(settings: EngineSettings) -> RecipeError:
    """Returns the error for a training with an engine that returns text only."""
    return RecipeError(
        f"engine.use is {settings.use}, which gives text only: what it samples cannot be trained on",
        place="engine",
        remedy="train with engine.use torch or vllm; agentrl rollout and agentrl eval take any",
    )


def _torch(recipe: Recipe, model: object, loaded: LoadedModel, tokenizer: Tokenizer) -> Engine:
    from agentrl.engines.embedded.engine import TorchEngine

    settings = recipe.engine
    return TorchEngine(
        model,
        max_context=loaded.max_context,
        decode=tokenizer.decode,
        max_batch=settings.max_batch,
        parked_mb=settings.parked_mb,
        threads=settings.threads,
        batch_invariant=settings.batch_invariant,
        processor=loaded.processor,
    )


def _vllm(
    parts: Parts, loaded: LoadedModel | None, tokenizer: Tokenizer, launch_servers: LaunchServers | None
) -> Engine:
    """Makes the vLLM engine, with the recipe's servers or with servers that it starts."""
    from agentrl.engines.vllm.engine import VLLMEngine
    from agentrl.engines.vllm.launch import start_servers

    recipe, settings = parts.recipe, parts.recipe.engine
    make = partial(VLLMEngine, settings, tokenizer=tokenizer, room=recipe.sampling.max_tokens, base=recipe.base)
    if settings.urls:
        return make(settings.urls)
    what = serving(parts, trains=loaded is not None)
    if recipe.launches_servers:
        if launch_servers is None:
            raise RecipeError(
                "this command cannot launch servers on a cluster",
                place="scale",
                remedy="start the servers and name them in engine.urls",
            )
        placed = launch_servers(recipe, model_folder(named_model(recipe)), what)
        return make((), servers=placed)
    servers = start_servers(settings, loaded or model_folder(named_model(recipe)), what)
    return make(servers.urls, servers=servers)
