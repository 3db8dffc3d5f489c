"""Rewards of turns without a gold answer: how much likelier a turn made an answer that the group trusts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from inspect import isawaitable
from itertools import pairwise
from statistics import fmean
from typing import Any

from agentrl.rewards.declare import Beliefs, reward
from agentrl.rewards.functions.answers.comparers import Comparer, classes, normalise, said
from agentrl.types.episode import Episode
from agentrl.types.parts.content import text_of


@reward(source="SIOP, arXiv:2605.04984; dl-m9/SIOP@a871ef9 verl/utils/siop/siop_process_reward.py", per_turn=True)
async def outcome_potential(
    group: list[Episode],
    beliefs: Beliefs,
    *,
    comparer: Comparer = "squad",
    references: int = 3,
    terminal: float = 0.5,
    evidence: float = 1.0,
    lead: str = "The answer is: ",
    eps: float = 1e-8,
) -> list[list[float | None]]:
    """q (log(p_t + eps) - log(p_{t-1} + eps)) for each turn t of the policy, and terminal * q in addition for the last.

    The answers of the group fall into clusters of equal ones. q is the reliability of the cluster of the episode's
    answer: q(c) ~ m(c) exp(evidence * r(c)), with the cluster's share m of the answers, and the share r of what its
    episodes were shown that names the answer. p_t is the mean over `references` different texts of the cluster of the
    probability (the geometric mean over the tokens) that the policy gives them after t turns. A turn beyond which the
    context is full gets no gain. The turns of an episode without an answer, or alone in its group, get 0.

    Differs from the authors' code: `comparer` replaces bidirectional entailment, and r the mean entailment of the
    answer by each observation, both of which need an NLI model.

    Args:
        comparer: decides which answers are equal.
        references: different texts of a cluster whose probabilities count, at most.
        terminal: weight of the reliability in the reward of the last turn; 1 - lambda of the paper.
        evidence: eta of the paper; 0: the share of the answers decides alone.
        lead: the beginning of a reply that answers. Write it as the policy does.
        eps: added to probabilities.
    """
    answers = [said(episode) or None for episode in group]
    found: Any = classes(answers, comparer)
    cluster: list[int | None] = await found if isawaitable(found) else found
    reliability = _reliability(group, answers, cluster, evidence)
    rewards: list[list[float | None]] = []
    for episode, mine in zip(group, cluster, strict=True):
        own = episode.own_turns
        gains = [0.0] * len(own)
        if mine is not None and own and len(group) > 1:
            texts = list(
                dict.fromkeys(answer for answer, k in zip(answers, cluster, strict=True) if k == mine and answer)
            )
            if len(own) > 1:
                likely = _likely(await beliefs(episode, texts[:references], lead))
                gains = [_gain(*pair, eps) for pair in pairwise(likely)]
            gains = [reliability[mine] * gain for gain in gains]
            gains[-1] += terminal * reliability[mine]
        placed = dict(zip((turn.index for turn in own), gains, strict=True))
        rewards.append([placed.get(turn.index) for turn in episode.turns])
    return rewards


def _reliability(
    group: Sequence[Episode], answers: Sequence[str | None], cluster: Sequence[int | None], evidence: float
) -> dict[int, float]:
    """q of each cluster; they sum to 1."""
    known = [k for k in cluster if k is not None]
    weight = {}
    for k in dict.fromkeys(known):
        shown = [_named(answers[k] or "", episode) for episode, own in zip(group, cluster, strict=True) if own == k]
        supported = [share for share in shown if share is not None]
        weight[k] = known.count(k) * math.exp(evidence * (fmean(supported) if supported else 0.0))
    return {k: each / math.fsum(weight.values()) for k, each in weight.items()}


def _named(answer: str, episode: Episode) -> float | None:
    """The share of an episode's observations that name an answer; None without an observation."""
    shown = [normalise(text_of(message["content"])) for turn in episode.turns for message in turn.observations]
    wanted = f" {normalise(answer)} "  # once: an answer may be as long as all observations
    return fmean(wanted in f" {text} " for text in shown) if shown else None


def _likely(moments: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean probability of the answers at each moment; None if none of them could be scored."""
    known = [[math.exp(each) for each in moment if each is not None] for moment in moments]
    return [fmean(each) if each else None for each in known]


def _gain(before: float | None, after: float | None, eps: float) -> float:
    return 0.0 if before is None or after is None else math.log(after + eps) - math.log(before + eps)
