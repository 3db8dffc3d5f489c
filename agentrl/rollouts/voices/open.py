"""Opens the auxiliary policies of a recipe: the section `policies`."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from agentrl.chat.renderer import Renderer
from agentrl.config.agent import PolicySettings
from agentrl.config.engine import EngineSettings
from agentrl.config.model import ModelSettings
from agentrl.config.recipe import Recipe
from agentrl.models.load import find_model
from agentrl.rollouts.builder import Parts
from agentrl.rollouts.conversation.voice import Voice, Voices
from agentrl.rollouts.engines import named_model, open_engine, start_to_sample
from agentrl.rollouts.voices.league import League
from agentrl.store.checkpoints import POLICIES, latest
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.errors import AgentRLError, RecipeError

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_voices(parts: Parts, *, trains: bool = False) -> AsyncIterator[Voices]:
    """Opens and starts the auxiliary policies of a recipe; closes them with the block.

    Args:
        trains: trainable policies are left to the training; else their saved weights are used.

    Raises:
        RecipeError: a checkpoint or script is missing.
        EngineError: an engine cannot be started.
    """
    known: dict[str, Voice] = {}
    leagues: dict[str, League] = {}
    async with AsyncExitStack() as stack:
        for name, settings in parts.recipe.policies.items():
            if settings.train and trains:
                continue
            if settings.selves is not None:
                open_self = partial(_open_self, parts, name, settings)
                leagues[name] = League(name, settings.selves, parts.recipe.seed, open_self)
                stack.push_async_callback(close_all, leagues[name])
                continue
            known[name] = await _voice(parts, name, settings)
            stack.push_async_callback(close_all, known[name].engine)
        awaited = [name for name, each in parts.recipe.policies.items() if each.train] if trains else []
        yield (voices := Voices(known, leagues, awaited=awaited))
        for name in voices.unheard:
            _log.info("policies.%s: no context of an episode named it", name)


async def _voice(parts: Parts, name: str, settings: PolicySettings) -> Voice:
    """Opens and starts an auxiliary policy."""
    try:
        engine, renderer = _opened(parts, name, settings)
        try:
            await start_to_sample(engine, _log.info)
        except BaseException:
            await close_all(engine)
            raise
    except AgentRLError as error:
        place = ", ".join(filter(None, [f"policies.{name}", error.place]))
        raise type(error)(error.message, place=place, remedy=error.remedy) from None
    return Voice(name, engine, renderer, parts.sampling(renderer, settings.sampling or parts.recipe.sampling))


async def _open_self(parts: Parts, name: str, settings: PolicySettings, folder: Path) -> Voice:
    """Opens a past version of the policy."""
    return await _voice(parts, name, settings.model_copy(update={"checkpoint": str(folder)}))


def leagues_of(voices: Voices | None) -> list[League]:
    """Returns the opponent pools among the auxiliary policies."""
    every = () if voices is None else voices.opponents.values()
    return [each for each in every if isinstance(each, League)]


def check_voices(parts: Parts) -> None:
    """Checks the auxiliary policies without opening them.

    Raises:
        RecipeError: a checkpoint is missing, or opponent pools are not supported by the recipe's settings.
    """
    recipe = parts.recipe
    for name, settings in recipe.policies.items():
        if isinstance(settings.checkpoint, str):
            checkpoint_of(name, settings.checkpoint)
        elif settings.selves is not None:
            _check_place(recipe, f"policies.{name}.checkpoint", "earlier selves speak", "checkpoint: PATH")
        elif settings.train and recipe.train is not None:
            _check_place(recipe, f"policies.{name}.train", "a second policy trains", "checkpoint: PATH")
            _check_alone(parts, f"policies.{name}.train")


def _check_place(recipe: Recipe, place: str, what: str, instead: str) -> None:
    apart = {"engine.use": recipe.engine.use != "torch", "scale.rollout_workers": recipe.scale.rollout_workers > 0}
    if bad := [key for key, is_so in apart.items() if is_so]:
        raise RecipeError(
            f"{what} in the process of the training, beside the embedded engine: not with {bad[0]}",
            place=place,
            remedy=f"remove {bad[0]}, or name frozen weights: {instead}",
        )


def _check_alone(parts: Parts, place: str) -> None:
    """Checks that a second policy trains in one process, in step with the main one, and in one stage."""
    recipe = parts.recipe
    stages = [stage for stage in recipe.stages if stage.rl is not None]
    apart = {
        "scale.trainer_ranks": recipe.scale.trainer_ranks > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1,
        "train.max_staleness": recipe.train is not None and recipe.train.max_staleness > 0,
        "information_gain" if recipe.information_gain is not None else "credit": parts.answer_scorer is not None,
        "stages": len(stages) > 1,
    }
    if bad := [key for key, is_so in apart.items() if is_so]:
        raise RecipeError(
            "a second policy trains in one process, after each rollout, in one stage of reinforcement learning, and "
            f"without information gain: not with this {bad[0]}",
            place=place,
            remedy=f"remove it, or change {bad[0]}",
        )


def checkpoint_of(name: str, written: str) -> Path:
    """Returns the model folder of a policy's `checkpoint`: itself, or the newest checkpoint of a run.

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
    """Opens the engine of an auxiliary policy: that of the same recipe, with another model and engine."""
    if settings.script is not None:
        return parts.scripted_engine(settings.script)
    recipe, model = parts.recipe, None
    if isinstance(settings.checkpoint, str):
        model = _model(recipe.model, checkpoint_of(name, settings.checkpoint))
    elif settings.train:
        model = _saved(named_model(recipe), name)
    engine = settings.engine or EngineSettings(use="torch")
    opened, renderer = open_engine(replace(parts, recipe=recipe.with_sections(model=model, engine=engine)))
    if (called := getattr(opened, "called", None)) is not None:
        called(f"policies.{name}")
    return opened, renderer


def _saved(model: ModelSettings, name: str) -> ModelSettings:
    """Returns the saved weights of a trainable policy in a checkpoint of the main one; else the model itself."""
    folder = Path(str(model.path)) / POLICIES / name
    return model.at(folder) if folder.is_dir() else model


def _model(trained: ModelSettings | None, folder: Path) -> ModelSettings:
    """Returns the model in a folder, with the data type and device of the recipe's model."""
    return ModelSettings(path=str(folder)) if trained is None else trained.at(folder)
