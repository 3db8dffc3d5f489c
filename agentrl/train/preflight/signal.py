"""Whether what a recipe samples and rewards can teach its policy: checked before the first episode."""

from __future__ import annotations

from collections.abc import Collection

from agentrl.credit.registry import CreditAssigner
from agentrl.curriculum.parts import Part
from agentrl.rollout.builder import Parts
from agentrl.types.errors import CreditError, RecipeError

OTHER_SIGNALS = frozenset({"gold_logprob", "process", "progress", "wrong", "prm_logprob", "win_rate"})
"""Columns of the credit table that teach something without any reward."""


def check_signal(parts: Parts, credit: CreditAssigner, curriculum: Collection[Part]) -> None:
    """Refuses recipes whose training would learn nothing, or something else than what is rewarded.

    Args:
        curriculum: the loaded parts of the recipe's.

    Raises:
        RecipeError: tokens are sampled from a part of the distribution, or those of older policies train uncorrected.
        CreditError: credit does not read the rewards of turns, and there are no others; or KL is put into a reward that
            it does not read.
    """
    recipe = parts.recipe
    assert recipe.train is not None
    if recipe.sampling.top_p < 1:
        raise RecipeError(
            f"sampling.top_p is {recipe.sampling.top_p:g}: the trainer computes probabilities over the whole "
            "vocabulary, so that every token's would differ from the one that it was sampled with",
            place="sampling.top_p",
            remedy="sampling.top_p=1 in training; agentrl eval and agentrl rollout take any",
        )
    if recipe.train.kl is not None and recipe.train.kl.place == "reward":
        credit.penalty_place()
    unread = unread_turn_rewards(parts, credit)
    weighed = [component for component in parts.rewards.components if component.weight]
    if unread and len(unread) == len(weighed) and not OTHER_SIGNALS & set(credit.needs):
        raise CreditError(
            f"all rewards are those of turns ({', '.join(unread)}), and {credit.estimator.name} reads none of them: "
            "nothing would be learned",
            place="credit",
            remedy=reading_turns(credit),
        )
    replaying = [part.name for part in curriculum if part.trains_older_episodes]
    if replaying and not recipe.train.corrects_stale_tokens:
        raise RecipeError(
            f"{', '.join(replaying)} trains on episodes of older policies, and nothing corrects for that",
            place="train.importance",
            remedy="train.importance={high: 2} (DART: {high: 1}), or train.old_logprobs=engine, which clips against "
            "the policy that sampled them",
        )


def unread_turn_rewards(parts: Parts, credit: CreditAssigner) -> list[str]:
    """The components with a weight that are known to score turns, if credit reads no rewards of turns.

    Those that credit reads under their own name (`process`, `wrong`) are not among them.
    """
    if credit.reads is None or credit.reads & {"turns", "first_turn"}:
        return []
    components = [each for each in parts.rewards.components if each.weight and each.per_turn]
    return [each.name for each in components if each.name not in credit.needs]


def reading_turns(credit: CreditAssigner) -> str:
    """The remedy for credit that does not read the rewards of turns."""
    name = credit.estimator.name
    by_score = getattr(credit.settings, "score", None) == "outcome"
    total = f"credit: {{{name}: {{score: total}}}}, or " if by_score else ""
    return f"{total}credit by turn: returns, gigpo, mt_grpo, turn_gae with a critic"
