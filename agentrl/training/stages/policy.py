"""Initial policy of a stage: the newest checkpoint, of this stage or of the previous one."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.config.model import ModelSettings
from agentrl.config.recipe import Recipe
from agentrl.config.train import LoraSettings
from agentrl.models.load import LoadedModel, load_model
from agentrl.store.checkpoints import about, latest
from agentrl.training import checkpoint
from agentrl.training.stages.record import Pins
from agentrl.training.stages.stage import Stage, is_of
from agentrl.training.trainer import Trainer
from agentrl.types.errors import RecipeError


@dataclass(frozen=True)
class StartingPolicy:
    """A policy as loaded, before a trainer is made.

    Attributes:
        loaded: the model; with adapters, the base model without them.
        newest: the checkpoint of the policy; None: training has not begun.
        base: with adapters, the checkpoint of the base weights; None: the recipe's model.
        carries: whether the checkpoint's adapters continue to train.
    """

    loaded: LoadedModel
    newest: Path | None
    base: str | None
    carries: bool

    def resume(self, trainer: Trainer, saved: checkpoint.Saved | None, stage: Stage) -> bool:
        """Loads the checkpoint into a trainer of `loaded`: all of its state if it is of the same stage, else the
        adapters.

        Returns:
            Whether the checkpoint is of the same stage.
        """
        if saved is None:
            return False
        if is_of(stage, saved.extra):
            trainer.load_state_dict(saved.trainer)
            return True
        if self.carries:
            trainer.load_adapters(saved.trainer["adapters"])
        return False


def starting_policy(
    recipe: Recipe, lora: LoraSettings | None, checkpoints: Path, texts: Iterable[str] = ()
) -> StartingPolicy:
    """Loads the policy that the stage starts or resumes from.

    A stage with the same adapter settings as the previous stage continues to train its adapters. A stage with other
    settings, or without adapters, starts from the merged weights.

    Args:
        texts: training texts for the tokenizer of a scratch model.
    """
    newest = latest(checkpoints)
    own = _model_of(recipe).for_training()
    if newest is None:
        return StartingPolicy(load_model(own, texts=texts, seed=recipe.seed), None, None, False)
    said = about(newest)
    carries = lora is not None and _lora_of(newest, said, lora) == lora.model_dump(mode="json")
    base = said.get("pins", {}).get("base") if carries else newest.name
    weights = own if base is None else own.at(checkpoints / base)
    loaded = load_model(weights, texts=texts, seed=recipe.seed)
    return StartingPolicy(loaded, newest, base if lora is not None else None, carries)


def let_go() -> None:
    """Frees the models of a finished stage, before those of the next stage are loaded."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def load_policy(recipe: Recipe, folder: Path) -> Any:
    """The policy of a checkpoint, as a model of transformers: a reference policy."""
    return load_model(_model_of(recipe).at(folder).for_training(), seed=recipe.seed).model


def pins_of(start: StartingPolicy, own: Mapping[str, Any] | None, *, refers: bool) -> Pins:
    """Returns the checkpoints that a stage depends on.

    Args:
        own: the metadata of the stage's newest checkpoint; None: the stage begins.
        refers: the stage uses its initial policy as a reference.
    """
    if own is not None:
        return dict(own.get("pins", {"base": None, "reference": None}))
    return {"base": start.base, "reference": start.newest.name if refers and start.newest is not None else None}


def _model_of(recipe: Recipe) -> ModelSettings:
    if recipe.model is None:
        raise RecipeError("the recipe has no section 'model'", remedy="training needs one")
    return recipe.model


def _lora_of(folder: Path, said: Mapping[str, Any], lora: LoraSettings) -> Any:
    """The settings of a checkpoint's adapters. Older checkpoints do not name them: they are of the same stage."""
    if "lora" in said:
        return said["lora"]
    return lora.model_dump(mode="json") if (folder / "adapter").exists() else None
