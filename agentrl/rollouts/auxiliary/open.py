"""Opens the auxiliary policies of a recipe: the section `policies`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.chat.renderer import Renderer
from agentrl.config.agent import PolicySettings
from agentrl.config.engine import EngineSettings
from agentrl.config.recipe import Recipe
from agentrl.engines.registry import chosen_engine
from agentrl.rollouts.auxiliary.opponent_pool import OpponentPool
from agentrl.rollouts.builder import Parts
from agentrl.rollouts.conversation.policies import EpisodePolicies, EpisodePolicy
from agentrl.rollouts.engines import open_engine, start_to_sample
from agentrl.rollouts.policy_models import weights_at
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.errors import AgentRLError, RecipeError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AuxiliaryPolicy:
    """An auxiliary policy of a recipe, which is not open yet.

    Attributes:
        parts: those of the recipe, with the policy's model, engine and sampling.
    """

    name: str
    settings: PolicySettings
    parts: Parts

    async def open(self) -> EpisodePolicy:
        """Opens its script or engine, and starts it.

        Raises:
            AgentRLError: it cannot be opened; the place names the policy.
        """
        try:
            engine, renderer = await asyncio.to_thread(self._made)  # weights are read; episodes may be in flight
            try:
                await start_to_sample(engine, _log.info)
            except BaseException:
                await close_all(engine)
                raise
        except AgentRLError as error:
            place = ", ".join(filter(None, [f"policies.{self.name}", error.place]))
            raise type(error)(error.message, place=place, remedy=error.remedy) from None
        return EpisodePolicy(self.name, engine, renderer, self.parts.sampling(renderer, self.parts.recipe.sampling))

    def _made(self) -> tuple[Engine, Renderer]:
        if self.settings.script is not None:
            return self.parts.scripted_engine(self.settings.script)
        engine, renderer = open_engine(self.parts)
        engine.called(f"policies.{self.name}")
        return engine, renderer

    async def at(self, folder: Path) -> EpisodePolicy:
        """Opens the policy with the weights of a folder: a past version of the main one."""
        recipe = self.parts.recipe.model_copy(update={"model": weights_at(folder, self.parts.recipe.model)})
        return await replace(self, parts=replace(self.parts, recipe=recipe)).open()


def policies_of(parts: Parts) -> list[AuxiliaryPolicy]:
    """Returns the auxiliary policies of a recipe: the same recipe with another model, engine and sampling each.

    Raises:
        RecipeError: a checkpoint is missing.
    """
    found = []
    for name, settings in parts.recipe.policies.items():
        own = {
            "model": parts.recipe.model if settings.selves is not None else parts.models[name],
            "engine": settings.engine or EngineSettings(),
            "sampling": settings.sampling or parts.recipe.sampling,
        }
        recipe = parts.recipe.model_copy(update=own)
        found.append(AuxiliaryPolicy(name, settings, replace(parts, recipe=recipe)))
    return found


@asynccontextmanager
async def open_policies(parts: Parts, *, trains: bool = False) -> AsyncIterator[EpisodePolicies]:
    """Opens and starts the auxiliary policies of a recipe; closes them with the block.

    Args:
        trains: trainable policies are left to the training; else their saved weights are used.

    Raises:
        RecipeError: a checkpoint or script is missing.
        EngineError: an engine cannot be started.
    """
    seed, awaited = parts.recipe.seed, list[str]()
    known, pools = dict[str, EpisodePolicy](), dict[str, OpponentPool]()
    async with AsyncExitStack() as stack:
        for policy in policies_of(parts):
            if policy.settings.train and trains:
                awaited.append(policy.name)
            elif policy.settings.selves is not None:
                pool = pools[policy.name] = OpponentPool(policy.name, policy.settings.selves, seed, policy.at)
                stack.push_async_callback(close_all, pool)
            else:
                speaker = known[policy.name] = await policy.open()
                stack.push_async_callback(close_all, speaker.engine)
        yield (speakers := EpisodePolicies(known, pools, awaited=awaited))
        for name in speakers.unheard:
            _log.info("policies.%s: no context of an episode named it", name)


def opponent_pools_of(speakers: EpisodePolicies | None) -> list[OpponentPool]:
    """Returns the opponent pools among the auxiliary policies."""
    every = () if speakers is None else speakers.opponents.values()
    return [each for each in every if isinstance(each, OpponentPool)]


def check_policies(parts: Parts) -> None:
    """Checks the auxiliary policies without opening them.

    Raises:
        RecipeError: a checkpoint is missing, or opponent pools are not supported by the recipe's settings.
    """
    recipe, _ = parts.recipe, parts.models
    for name, settings in recipe.policies.items():
        if settings.selves is not None:
            _check_place(recipe, f"policies.{name}.checkpoint", "earlier selves speak", "checkpoint: PATH")
        elif settings.train and recipe.train is not None:
            _check_place(recipe, f"policies.{name}.train", "a second policy trains", "checkpoint: PATH")
            _check_alone(parts, f"policies.{name}.train")


def _check_place(recipe: Recipe, place: str, what: str, instead: str) -> None:
    apart = {
        "engine.use": not chosen_engine(recipe).plug_in.holds_weights,
        "scale.rollout_workers": recipe.scale.rollout_workers > 0,
    }
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
        "hindsight" if recipe.hindsight is not None else "credit.use": parts.hindsight is not None,
        "stages": len(stages) > 1,
    }
    if bad := [key for key, is_so in apart.items() if is_so]:
        raise RecipeError(
            "a second policy trains in one process, after each rollout, in one stage of reinforcement learning, and "
            f"without information gain or hindsight: not with this {bad[0]}",
            place=place,
            remedy=f"remove it, or change {bad[0]}",
        )
