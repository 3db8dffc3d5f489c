"""Checks of what reinforcement learning needs beyond a rollout, as a table; run before the first demonstration."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.config.model import ModelSettings
from agentrl.config.recipe import TrainingRecipe
from agentrl.config.train import OptimiserSettings
from agentrl.engines.registry import chosen_engine
from agentrl.models.load import count_layers, sees
from agentrl.preflight.pairs import check_pairs
from agentrl.preflight.signal import check_signal
from agentrl.preflight.trainer import check_rl, chosen_trainer
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.auxiliary.open import check_policies
from agentrl.rollouts.builder import Parts
from agentrl.rollouts.engines import not_trainable
from agentrl.training.backend import COLUMNS
from agentrl.training.losses.loss import COLUMN_OF, Need, read_by
from agentrl.training.losses.registry import load_loss
from agentrl.training.stages.plan import RlPlan
from agentrl.training.stages.stage import Stage
from agentrl.training.teacher import check_teacher
from agentrl.types.errors import CreditError, RecipeError

# By section of `train`: the model, the columns that it provides for credit, and the estimators that need them.
_LEARNED = {
    "critic": ("a critic", {"value", "progress"}, "gae, turn_gae, bi_level_gae, ppr, spa, a_lol"),
    "reward_model": ("an implicit process reward model", {"prm_logprob"}, "implicit_prm, istar, sweet"),
}


def rl_plan(stage: Stage, parts: Parts) -> RlPlan:
    """The plan of a stage of reinforcement learning, checked.

    Raises:
        RecipeError: a section or the rewards are missing, the stop rule can never apply, or a part of the curriculum
            does not fit.
        TrainError: the loss or one of its settings is unknown.
        CreditError: the estimator needs something that the tools do not provide.
    """
    recipe = TrainingRecipe.of(parts.recipe, served=chosen_engine(parts.recipe).plug_in.weights == "own")
    loss, _ = load_loss(recipe.train.loss, recipe.base)
    plan = RlPlan(stage, parts, chosen_trainer(recipe, recipe.train), recipe, loss)
    for check in CHECKS:
        check(plan)
    return plan


def _engine(plan: RlPlan) -> None:
    engine = chosen_engine(plan.recipe)
    if not engine.plug_in.trainable and not plan.trainer.plug_in.capabilities.memory:
        raise not_trainable(plan.recipe.engine)
    engine.plug_in.check_training(engine.settings, plan.recipe)


def _rewards(plan: RlPlan) -> None:
    if not plan.recipe.rewards:
        raise RecipeError("the recipe has no rewards", place="rewards", remedy="training needs at least one")
    for component in plan.parts.rewards.components:
        if component.weight and not component.forgery_accepted and (how := component.forgeable):
            raise RecipeError(
                f"{component.name} can be forged by what is trained: {how}",
                place=f"rewards.{component.name}",
                remedy="train on another reward; this one is for rollout and eval, or for training with weight 0 "
                "(accept_forgery: true trains on it all the same)",
            )


def _states(plan: RlPlan) -> None:
    parts, credit = plan.parts, plan.parts.credit
    keyed = parts.states.signature is not None or any(tool.knows_state for tool in parts.make_tools())
    keyed |= type(parts.make_agent()).state_key is not Agent.state_key
    if "state" in credit.needs and not keyed:
        raise CreditError(
            f"{credit.estimator.name} compares turns at the same state, but no tool has a state_key(), nor the agent",
            place="credit.estimator",
            remedy="set agent.state=tools (files changed, results seen), define state_key(self) -> str in a tool, or "
            "use another estimator (grpo, returns)",
        )


def _learned_models(plan: RlPlan) -> None:
    """Checks that the recipe has a critic or a reward model if, and only if, credit reads its output."""
    credit = plan.parts.credit
    for section, (what, columns, takers) in _LEARNED.items():
        asked, given = columns & set(credit.needs), getattr(plan.recipe.train, section) is not None
        if asked and not given:
            raise CreditError(
                f"{credit.estimator.name} needs {what} ({', '.join(sorted(asked))}), and the recipe has none",
                place=f"train.{section}",
                remedy=f"set train: {{{section}: {{}}}}, or use another estimator (grpo, gigpo)",
            )
        if given and not asked:
            raise RecipeError(
                f"{credit.estimator.name} does not use a {section.replace('_', ' ')}",
                place=f"train.{section}",
                remedy=f"remove it, or use an estimator that needs it: {takers}",
            )


def _anchors(plan: RlPlan) -> None:
    """Checks that the recipe has a teacher or a moving average if, and only if, KL, the loss or credit reads it."""
    train, credit = plan.recipe.train, plan.parts.credit
    read = {COLUMN_OF[need]: place for need, place in read_by(plan.loss, train).items()}
    read |= {name: "credit.estimator" for name in COLUMNS if name in credit.needs}
    examples: dict[Need, str] = {"teacher": "{path: FOLDER}", "ema_reference": "{decay: 0.995}"}
    for section, example in examples.items():
        by, given = read.get(COLUMN_OF[section]), getattr(train, section) is not None
        if by is not None and not given:
            raise RecipeError(
                f"{by} reads the log-probabilities of a policy that the recipe does not have: {section}",
                place=f"train.{section}",
                remedy=f"set train: {{{section}: {example}}}, or change {by}",
            )
        if given and by is None:
            raise RecipeError(
                f"nothing reads train.{section}",
                place=f"train.{section}",
                remedy=f"train.kl={{coef: 0.001, to: {section}}}, a loss or an estimator that needs it; or remove it",
            )
    if train.teacher is not None:
        check_teacher(train.teacher, plan.recipe.model)


def _win_rates(plan: RlPlan) -> None:
    if "win_rate" in plan.parts.credit.needs and "win_rate" not in plan.recipe.rewards:
        raise CreditError(
            f"{plan.parts.credit.estimator.name} reads win rates, but no reward component is named win_rate",
            place="rewards",
            remedy="set rewards: {win_rate: {judge: {url: ..., model: ...}, weight: 0}}, the share of comparisons won",
        )


def _stop_rule(plan: RlPlan) -> None:
    stop = plan.recipe.train.stop
    if plan.recipe.eval is None and stop is not None and stop.evaluates:
        raise RecipeError(
            f"{stop.metric!r} is a metric of evaluations, but the recipe has no eval",
            place="train.stop.metric",
            remedy="set eval: {every: 10}, or use a metric of training",
        )


def _policies(plan: RlPlan) -> None:
    recipe = plan.recipe
    check_policies(plan.parts)
    second = next((name for name, each in recipe.policies.items() if each.train), None)
    if second is not None and recipe.model.scratch is not None and plan.stage.index == 0:
        raise RecipeError(
            "a scratch model has random weights: LoRA adapters alone cannot train it",
            place=f"policies.{second}.lora",
            remedy="set model.path, or a supervised stage before",
        )


def _model(plan: RlPlan) -> None:
    check_model(plan.recipe.model, plan.recipe.train, begins=plan.stage.index == 0)


def _signal(plan: RlPlan) -> None:
    weights = not plan.trainer.plug_in.capabilities.memory
    check_signal(plan.recipe, plan.parts, plan.parts.make_curriculum(), probabilities=weights)


CHECKS: tuple[Callable[[RlPlan], None], ...] = (
    _engine,
    _rewards,
    lambda plan: check_seats(plan.parts),
    _states,
    _learned_models,
    _anchors,
    _win_rates,
    _stop_rule,
    _policies,
    _model,
    check_rl,
    _signal,
    check_pairs,
)
"""In this order; the first that fails raises."""


def check_seats(parts: Parts) -> None:
    """Checks that the estimator can credit the seats of an episode, where the agent has several.

    Raises:
        CreditError: it cannot.
    """
    if parts.make_agent().seats:
        parts.credit.estimator.check_seats(parts.credit.settings, "credit.estimator")


def check_model(model: ModelSettings | None, optimiser: OptimiserSettings, begins: bool) -> None:
    """Checks the model that is to be trained.

    Args:
        begins: whether it is the first stage, which trains the recipe's model.

    Raises:
        RecipeError: the model is missing, has too few layers, does not see, or is a scratch model with adapters.
    """
    if model is None:
        raise RecipeError("the recipe has no section 'model'", remedy="training needs it")
    if optimiser.lora is not None and model.scratch is not None and begins:
        raise RecipeError(
            "a scratch model has random weights: LoRA adapters alone cannot train it",
            place="train.lora",
            remedy="set model.path, or train without lora",
        )
    if optimiser.freeze_vision_tower and not sees(model):
        raise RecipeError("the model has no vision tower", place="train.freeze_vision_tower", remedy="leave it out")
    if optimiser.trainable is not None:
        top, layers = optimiser.trainable.top_layers, count_layers(model)
        if layers is not None and top > layers:
            raise RecipeError(
                f"top_layers is {top}, but the model has {layers} layers",
                place="train.trainable.top_layers",
                remedy=f"set at most {layers}",
            )
