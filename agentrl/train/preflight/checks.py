"""What training needs beyond a rollout, checked before the first demonstration."""

from __future__ import annotations

import os

from agentrl.config.recipe import Recipe, TrainingRecipe
from agentrl.config.train import OptimiserSettings
from agentrl.credit.registry import load_credit
from agentrl.curriculum.curriculum import load_parts
from agentrl.engines.registry import samples_tokens
from agentrl.models.load import count_layers
from agentrl.rollout.builder import Parts
from agentrl.rollout.engines import not_trainable
from agentrl.tools.base import Tool
from agentrl.train.losses.registry import load_loss
from agentrl.train.preflight.signal import check_signal
from agentrl.types.errors import CreditError, RecipeError

# By section of `train`: what it is, the columns that it gives to credit, and who asks for them.
_LEARNED = {
    "critic": ("a critic", {"value", "progress"}, "gae, turn_gae, bi_level_gae, ppr, spa"),
    "reward_model": ("an implicit process reward model", {"prm_logprob"}, "implicit_prm"),
}


def check_training(parts: Parts, *, begins: bool = True) -> TrainingRecipe:
    """What training needs beyond a rollout, checked before the first demonstration.

    Args:
        begins: whether it is the first stage, which trains the recipe's model.

    Returns:
        The recipe as one that trains.

    Raises:
        RecipeError: a section is missing, nothing rewards, a stop rule could never end it, or a part of the curriculum
            does not fit.
        TrainError: the loss or one of its settings is unknown.
        CreditError: the estimator is unknown or needs what the tools do not give.
    """
    recipe = TrainingRecipe.of(parts.recipe)
    if not samples_tokens(recipe.engine, recipe.base):
        raise not_trainable(recipe.engine)
    if recipe.launches_servers and recipe.model.scratch is not None:
        raise RecipeError(
            "vLLM servers on a cluster read the model from a folder, and this one is built by training",
            place="model.scratch",
            remedy="train it elsewhere first, then model.path names its folder; or name servers in engine.urls",
        )
    if recipe.engine.colocate is not None:
        _check_turns(recipe)
    if not recipe.rewards:
        raise RecipeError("the recipe has no rewards", place="rewards", remedy="training needs at least one")
    credit = load_credit(recipe.credit, recipe.base)
    keyed = any(type(tool).state_key is not Tool.state_key for tool in parts.make_tools())
    if "state" in credit.needs and not keyed:
        raise CreditError(
            f"{credit.estimator.name} compares turns that acted on the same state, and no tool has a state_key()",
            place="credit.estimator",
            remedy="def state_key(self) -> str in a tool, or another estimator (grpo, returns)",
        )
    for section, (what, columns, takers) in _LEARNED.items():
        asked, given = columns & set(credit.needs), getattr(recipe.train, section) is not None
        if asked and not given:
            raise CreditError(
                f"{credit.estimator.name} needs {what} ({', '.join(sorted(asked))}), and there is none",
                place=f"train.{section}",
                remedy=f"train: {{{section}: {{}}}}, or another estimator (grpo, gigpo)",
            )
        if given and not asked:
            raise RecipeError(
                f"{credit.estimator.name} asks for no {section.replace('_', ' ')}",
                place=f"train.{section}",
                remedy=f"remove it, or take credit that does: {takers}",
            )
    if "win_rate" in credit.needs and "win_rate" not in recipe.rewards:
        raise CreditError(
            f"{credit.estimator.name} reads win rates, and no reward component is named win_rate",
            place="rewards",
            remedy="rewards: {win_rate: {use: ./task.py:win_rate, weight: 0}}, the share of comparisons won",
        )
    if recipe.eval is None and recipe.train.stop is not None and recipe.train.stop.evaluates:
        raise RecipeError(
            f"{recipe.train.stop.metric!r} is a metric of evaluations, and there are none: the rule could never end it",
            place="train.stop.metric",
            remedy="eval: {every: 10}, or a metric of training",
        )
    check_model(recipe, recipe.train, begins)
    load_loss(recipe.train.loss, recipe.base)
    check_signal(parts, credit, load_parts(recipe.curriculum, recipe.base, recipe.scripts))
    return recipe


def check_model(recipe: Recipe, optimiser: OptimiserSettings, begins: bool) -> None:
    """Whether what is to train is there.

    Raises:
        RecipeError: there is no model, or it has fewer layers, or is built from nothing and to be kept.
    """
    if recipe.model is None:
        raise RecipeError("the recipe has no section 'model'", remedy="training needs it")
    if optimiser.lora is not None and recipe.model.scratch is not None and begins:
        raise RecipeError(
            "a model that is built from nothing has nothing that adapters could keep",
            place="train.lora",
            remedy="give model.path, or train without lora",
        )
    if optimiser.trainable is not None:
        top, layers = optimiser.trainable.top_layers, count_layers(recipe.model)
        if layers is not None and top > layers:
            raise RecipeError(
                f"{top} layers are to train, and the model has {layers}",
                place="train.trainable.top_layers",
                remedy=f"at most {layers}",
            )


def _check_turns(recipe: TrainingRecipe) -> None:
    """Trainer and servers can take turns on a GPU only where one waits for the other, in one process each."""
    apart = {
        "train.max_staleness": recipe.train.max_staleness > 0,
        "scale.trainer_ranks": recipe.scale.trainer_ranks > 1 or int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1,
        "scale.use": recipe.launches_servers,
        "engine.transfer": recipe.engine.transfer.use != "file",
    }
    if bad := [name for name, is_so in apart.items() if is_so]:
        raise RecipeError(
            "with engine.colocate trainer and servers of one machine take turns: one trainer process, no staleness, "
            "weights through a file",
            place=bad[0],
            remedy=f"leave {bad[0]} out, or engine.colocate",
        )
