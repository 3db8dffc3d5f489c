"""Opens the voices of a recipe: the section `policies`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agentrl.chat.renderer import Renderer
from agentrl.config.agent import PolicySettings
from agentrl.config.engine import EngineSettings
from agentrl.config.model import ModelSettings
from agentrl.config.recipe import Recipe
from agentrl.models.load import find_model
from agentrl.rollout.builder import Parts
from agentrl.rollout.conversation.voice import Voice, Voices
from agentrl.rollout.engines import open_engine, start_to_sample
from agentrl.store.checkpoints import latest
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.errors import AgentRLError, RecipeError

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_voices(parts: Parts) -> AsyncIterator[Voices]:
    """The voices of a recipe, started. Closed with the block.

    Raises:
        RecipeError: a checkpoint or script is missing.
        EngineError: an engine cannot be started.
    """
    known: dict[str, Voice] = {}
    async with AsyncExitStack() as stack:
        for name, settings in parts.recipe.policies.items():
            try:
                engine, renderer = _opened(parts, name, settings)
                stack.push_async_callback(close_all, engine)
                await start_to_sample(engine, _log.info)
            except AgentRLError as error:
                place = ", ".join(filter(None, [f"policies.{name}", error.place]))
                raise type(error)(error.message, place=place, remedy=error.remedy) from None
            sampling = parts.sampling(renderer, settings.sampling or parts.recipe.sampling)
            known[name] = Voice(engine, renderer, sampling)
        yield (voices := Voices(known))
        for name in voices.unheard:
            _log.info("policies.%s: no context of an episode named it", name)


def check_voices(recipe: Recipe) -> None:
    """Checks what can be checked of the voices without opening them.

    Raises:
        RecipeError: a checkpoint is missing.
    """
    for name, settings in recipe.policies.items():
        if settings.checkpoint is not None:
            checkpoint_of(name, settings.checkpoint)


def checkpoint_of(name: str, written: str) -> Path:
    """The model folder that a voice's `checkpoint` means: itself, or the newest checkpoint of a run.

    Raises:
        RecipeError: it is neither, or the run has no checkpoint.
    """
    place, folder = f"policies.{name}.checkpoint", Path(written).expanduser()
    if (folder / "run.json").is_file():
        newest = latest(folder / "checkpoints")
        if newest is None:
            raise RecipeError(f"the run {written} has no checkpoint", place=place, remedy="agentrl train writes them")
        return newest
    try:
        return find_model(written)
    except RecipeError:
        raise RecipeError(
            f"{written!r} is neither a run nor a model",
            place=place,
            remedy="a run directory, a checkpoint in its folder 'checkpoints', a model folder or package:NAME",
        ) from None


def _opened(parts: Parts, name: str, settings: PolicySettings) -> tuple[Engine, Renderer]:
    """The engine of a voice: that of the same recipe, with another model and engine."""
    if settings.script is not None:
        return parts.scripted_engine(settings.script)
    recipe, model = parts.recipe, None
    if settings.checkpoint is not None:
        model = _model(recipe.model, checkpoint_of(name, settings.checkpoint))
    engine = settings.engine or EngineSettings(use="torch")
    return open_engine(replace(parts, recipe=recipe.with_sections(model=model, engine=engine)))


def _model(trained: ModelSettings | None, folder: Path) -> ModelSettings:
    """The model in a folder, of the data type and on the device of the recipe's model."""
    return ModelSettings(path=str(folder)) if trained is None else trained.at(folder)
