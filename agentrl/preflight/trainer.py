"""Checks that a trainer has what a recipe needs, by its declared capabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentrl.config.recipe import Recipe, RlStage
from agentrl.config.train import OptimiserSettings
from agentrl.curriculum.parts import Filter
from agentrl.models.load import sees
from agentrl.registry.installed import is_foreign
from agentrl.registry.registry import Loaded, name_of
from agentrl.training.backend import COLUMNS, Column, Feature, TrainerBackend, TrainerCapabilities
from agentrl.training.backends import TRAINERS
from agentrl.training.losses.loss import COLUMN_OF, read_by
from agentrl.training.stages.data import key_of, offline_loss
from agentrl.training.stages.plan import RlPlan, StagePlan
from agentrl.types.errors import RecipeError

ChosenTrainer = Loaded[type[TrainerBackend]]


@dataclass(frozen=True)
class Need:
    """A feature, and the recipes that need it.

    Attributes:
        lacks: what a trainer without it does instead, after its name.
    """

    feature: Feature
    needed: Callable[[Recipe, OptimiserSettings], bool]
    lacks: str
    place: str
    remedy: str


def _several_ranks(recipe: Recipe, _: OptimiserSettings) -> bool:
    return recipe.scale.trainer_ranks > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1


NEEDS = (
    Need("all_weights", lambda _, own: own.lora is None, "trains adapters only", "train.lora", "train.lora={rank: 16}"),
    Need("adapters", lambda _, own: own.lora is not None, "trains no adapters", "train.lora", "train.lora=null"),
    Need(
        "prefix_trees",
        lambda _, own: own.packing == "tree",
        "packs no prefix trees",
        "train.packing",
        "train.packing=auto",
    ),
    Need("ranks", _several_ranks, "is one process", "scale.trainer_ranks", "scale.trainer_ranks=1, and no torchrun"),
    Need(
        "images",
        lambda recipe, _: recipe.model is not None and sees(recipe.model, unknown=False),
        "takes no images",
        "model",
        "a model that takes text only",
    ),
)
ROLLOUT_NEEDS = (
    Need(
        "token_records",
        lambda recipe, _: recipe.train is not None and recipe.train.record_tokens > 0,
        "records no numbers of tokens",
        "train.record_tokens",
        "train.record_tokens=0",
    ),
    Need(
        "streaming",
        lambda recipe, _: recipe.train is not None and recipe.train.stream,
        "computes no gradient before all groups are there",
        "train.stream",
        "train.stream=false",
    ),
    Need(
        "second_policies",
        lambda recipe, _: any(each.train for each in recipe.policies.values()),
        "trains one policy",
        "policies",
        "policies that do not train",
    ),
    Need(
        "temperature",
        lambda recipe, _: recipe.sampling.temperature not in (0, 1),
        "computes log-probabilities at temperature 1",
        "sampling.temperature",
        "sampling.temperature=1",
    ),
    Need(
        "any_engine",
        lambda recipe, _: not is_foreign(recipe.engine.use, "engines"),
        "gives its weights to no built-in engine",
        "engine",
        "the engine that belongs to it, engine={use: ./file.py:Engine}",
    ),
    Need(
        "any_engine",
        lambda recipe, _: any(each.selves is not None for each in recipe.policies.values()),
        "writes no weights into checkpoints, which play as earlier selves",
        "policies",
        "policies without 'checkpoint'",
    ),
)


def chosen_trainer(recipe: Recipe, own: OptimiserSettings) -> ChosenTrainer:
    """The trainer that a stage names, with its settings.

    Raises:
        RecipeError: it does not exist, is not a trainer, or a setting does not fit.
    """
    return TRAINERS.chosen(own.backend, recipe.base)


def check_rl(plan: RlPlan) -> None:
    """Checks that the trainer has what reinforcement learning needs.

    Raises:
        RecipeError: it does not.
    """
    train, credit = plan.recipe.train, plan.parts.credit
    own = [] if _can(plan.trainer).memory else [(name_of(train.loss.use), "train.loss")]
    for loss, place in [*own, *_imitated(plan)]:
        _check_loss(plan.trainer, loss, place)
    if _can(plan.trainer).memory and any(each.selves is not None for each in plan.recipe.policies.values()):
        lacks = "changes a text memory, which earlier selves do not have"
        raise _refused(plan.trainer, lacks, "policies", "opponents that are not earlier selves")
    if _can(plan.trainer).memory and plan.recipe.agent.is_program:
        lacks = "writes into prompts, and a program makes its own"
        raise _refused(plan.trainer, lacks, "agent", "an agent that agentrl drives")
    columns: list[tuple[Column, str]] = [(name, "credit.estimator") for name in COLUMNS if name in credit.needs]
    columns += [(COLUMN_OF[need], place) for need, place in read_by(plan.loss, train).items()]
    for column, place in columns:
        _check_column(plan.trainer, column, place)
    _check_settings(plan.trainer, plan.recipe, train, (*NEEDS, *ROLLOUT_NEEDS))
    for index, part in enumerate(plan.parts.make_curriculum()):
        if part.sets_temperature and "temperature" not in _can(plan.trainer).features:
            lacks = "computes log-probabilities at temperature 1"
            raise _refused(plan.trainer, lacks, f"curriculum.{index}", f"do without {part.name}")


def check_offline(plan: StagePlan) -> None:
    """Checks that the trainer has what a supervised or preference stage needs.

    Raises:
        RecipeError: it does not.
    """
    stage = plan.stage
    assert not isinstance(stage.settings, RlStage)
    name = name_of(stage.settings.loss.use)
    place = "train.backend" if name == "cross_entropy" else key_of(stage, "loss")
    _check_loss(plan.trainer, name, place)
    for need in offline_loss(stage).needs:
        if need in ("teacher", "ema_reference"):
            raise RecipeError(
                f"{name} needs {need}, which only reinforcement learning has",
                place=place,
                remedy="another loss",
            )
        _check_column(plan.trainer, COLUMN_OF[need], place)
    _check_settings(plan.trainer, stage.recipe, stage.optimiser, NEEDS)


def _imitated(plan: RlPlan) -> Iterator[tuple[str, str]]:
    """Yields the loss of demonstrations for each part of the curriculum that asks for some."""
    for index, part in enumerate(plan.parts.make_curriculum()):
        if isinstance(part, Filter) and (
            type(part).demonstrate is not Filter.demonstrate or type(part).correct is not Filter.correct
        ):
            yield "cross_entropy", f"curriculum.{index}"


def _can(trainer: ChosenTrainer) -> TrainerCapabilities:
    return trainer.plug_in.capabilities


def _check_loss(trainer: ChosenTrainer, loss: str, place: str) -> None:
    can = _can(trainer)
    if not can.loss_functions and loss not in can.losses:
        has = ", ".join(sorted(can.losses)) or "none"
        raise _refused(trainer, f"does not compute the loss {loss}", place, f"its losses: {has}")


def _check_column(trainer: ChosenTrainer, column: Column, place: str) -> None:
    if column not in _can(trainer).columns:
        raise _refused(trainer, f"does not compute {column}: it has not {COLUMNS[column]}", place, "do without it")


def _check_settings(trainer: ChosenTrainer, recipe: Recipe, own: OptimiserSettings, needs: tuple[Need, ...]) -> None:
    can, fields = _can(trainer), type(own).model_fields
    for key in sorted(can.unread & fields.keys()):
        if getattr(own, key) != fields[key].get_default(call_default_factory=True):
            raise _refused(trainer, f"does not read train.{key}", f"train.{key}", "leave it out")
    for need in needs:
        if need.feature not in can.features and need.needed(recipe, own):
            raise _refused(trainer, need.lacks, need.place, need.remedy)


def _refused(trainer: ChosenTrainer, why: str, place: str, remedy: str) -> RecipeError:
    return RecipeError(f"the trainer {trainer.name} {why}", place=place, remedy=f"{remedy}; or train.backend=local")
