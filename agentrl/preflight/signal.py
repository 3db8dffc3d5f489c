"""Checks before the first episode that the rewards of a recipe can train its policy."""

from __future__ import annotations

from collections.abc import Collection

from agentrl.config.recipe import TrainingRecipe
from agentrl.curriculum.parts import Part
from agentrl.estimators.registry import CreditAssigner
from agentrl.preflight.bounds import check_bounds
from agentrl.rollouts.builder import Parts
from agentrl.types.errors import CreditError, RecipeError

OTHER_SIGNALS = frozenset({"gold_logprob", "process", "progress", "wrong", "prm_logprob", "win_rate"})
"""Columns of the credit table that provide a training signal without any reward."""


def check_signal(
    recipe: TrainingRecipe, parts: Parts, curriculum: Collection[Part], *, probabilities: bool = True
) -> None:
    """Refuses recipes whose training would learn nothing, or would not follow the rewards.

    Args:
        curriculum: the loaded parts of the recipe's curriculum.
        probabilities: whether the trainer computes those of tokens.

    Raises:
        RecipeError: tokens are sampled from a truncated distribution, or the loss does not correct for tokens of older
            policies.
        CreditError: all rewards are turn rewards and the estimator does not read them; or it does not read the reward
            that contains the KL penalty; or the scores of the recipe exceed its bounds.
    """
    credit = parts.credit
    if recipe.sampling.top_p < 1 and probabilities:
        raise RecipeError(
            f"sampling.top_p is {recipe.sampling.top_p:g}: the trainer computes probabilities over the whole "
            "vocabulary, which would differ from those that tokens were sampled with",
            place="sampling.top_p",
            remedy="set sampling.top_p=1 in training; agentrl eval and agentrl rollout take any value",
        )
    if recipe.train.kl is not None and recipe.train.kl.place == "reward":
        credit.penalty_place()
    check_bounds(parts)
    unread = unread_turn_rewards(parts)
    weighed = [component for component in parts.rewards.components if component.weight]
    if unread and len(unread) == len(weighed) and not OTHER_SIGNALS & set(credit.needs):
        raise CreditError(
            f"all rewards are turn rewards ({', '.join(unread)}), and {credit.estimator.name} does not read them: "
            "nothing would be learned",
            place="credit",
            remedy=reading_turns(credit),
        )
    replaying = [part.name for part in curriculum if part.trains_older_episodes]
    if replaying and probabilities and not recipe.train.corrects_stale_tokens:
        raise RecipeError(
            f"{', '.join(replaying)} trains on episodes of older policies, and the loss does not correct for that",
            place="train.importance",
            remedy="set train.importance={high: 2} (DART: {high: 1}), or train.old_logprobs=engine, which clips "
            "against the policy that sampled them",
        )


def unread_turn_rewards(parts: Parts) -> list[str]:
    """The components with a weight that score turns, if the estimator does not read turn rewards.

    Components that the estimator reads by name (`process`, `wrong`) are not included.
    """
    credit = parts.credit
    if credit.reads is None or credit.reads & {"turns", "first_turn"}:
        return []
    components = [each for each in parts.rewards.components if each.weight and each.per_turn]
    return [each.name for each in components if each.name not in credit.needs]


def reading_turns(credit: CreditAssigner) -> str:
    """The remedy for an estimator that does not read turn rewards."""
    name = credit.estimator.name
    by_score = getattr(credit.settings, "score", None) == "outcome"
    total = f"credit: {{{name}: {{score: total}}}}, or " if by_score else ""
    return f"{total}an estimator by turn: returns, gigpo, mt_grpo, turn_gae with a critic"
