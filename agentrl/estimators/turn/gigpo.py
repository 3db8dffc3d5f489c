"""GiGPO: the episode against its group, plus each turn against the other turns that acted on the same state."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Normalisation, normalise
from agentrl.estimators.score import group_advantage
from agentrl.estimators.table import CreditTable


class GigpoSettings(Normalisation):
    """Settings of `gigpo`. `weighting` and `singleton` apply to the episode part.

    The paper (its Eq. 3) takes `weighting: trajectory`, the default here; the authors' code takes `turn`, with
    `singleton: raw`. `std: none` is the authors' `mean_norm`, `std: sample` their `mean_std_norm`.

    Attributes:
        gamma: discount per turn of the step returns. The episode's score is never discounted.
        omega: weight of the step part (the authors' `step_advantage_w`).
        similarity: None: states are the same if their keys are equal. Otherwise a key joins the first cluster with a
            first key of at least this difflib ratio to it (the authors take 0.9 to 0.95). Costs one text comparison per
            key and cluster.
        invalid_penalty: subtracted from the episode's score and the step return of a turn with calls that cannot be
            parsed or name an unknown tool, after discounting, so that it affects only that turn. The authors take 0.1,
            in search 0.01.
    """

    gamma: Discount = 0.95
    omega: float = Field(1.0, allow_inf_nan=False)
    similarity: float | None = Field(None, gt=0, le=1)
    invalid_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)


@estimator(
    granularity="turn",
    source="arXiv:2505.10978; verl-agent gigpo/core_gigpo.py, as in xlan156/verl-agent@8ca3a46",
    certainty="A",
    needs=["state"],
    reads=["outcome", "turns"],
)
def gigpo(table: CreditTable, settings: GigpoSettings) -> Advantages:
    """A_{i,t} = A^E_i + omega * A^S_{i,t}.

    A^E normalises the plain sum of the trajectory's rewards over its group. A^S normalises the discounted step return
    over all turns of the group that acted on the same state, repeats inside a trajectory included; it is 0 for a state
    that was seen once, and for turns without a state key.
    """
    penalty = np.where(table.valid, 0.0, settings.invalid_penalty)
    episode = _episode_part(table, penalty, settings)
    anchors = anchor_groups(table, settings.similarity)
    anchored = anchors >= 0
    step = np.zeros(table.n_turns)
    step[anchored] = normalise(
        (table.returns(settings.gamma) - penalty)[anchored], anchors[anchored], std=settings.std, eps=settings.eps
    )
    step *= settings.omega
    sizes = np.bincount(anchors[anchored])
    metrics = {"step_group_size": float(sizes.mean()), "single_step_groups": float(np.mean(sizes == 1))}
    return Advantages(episode + step, parts={"episode": episode, "step": step}, metrics=metrics)


def _episode_part(table: CreditTable, penalty: Floats, settings: GigpoSettings) -> Floats:
    """A^E of every turn; with penalties, of scores that differ from turn to turn [n_turns]."""
    if not penalty.any():
        return group_advantage(table, table.total_reward, settings)[table.trajectory]
    return normalise(
        table.total_reward[table.trajectory] - penalty,
        table.turn_group,
        table.turn_weights(settings.weighting),
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        members=np.bincount(table.group[table.length > 0], minlength=table.n_groups),
        names=table.group_ids,
    )


def anchor_groups(table: CreditTable, similarity: float | None = None) -> Ints:
    """Index of the step group of every turn, -1 for turns without a state key [n_turns]."""
    keyed = table.state >= 0
    pair = table.turn_group * len(table.states) + table.state
    anchors = np.full(table.n_turns, -1)
    found, first, inverse = np.unique(pair[keyed], return_index=True, return_inverse=True)
    if similarity is not None:
        inverse = _clusters(table, found, first, similarity)[inverse]
    anchors[keyed] = inverse
    return anchors


def _clusters(table: CreditTable, pairs: Ints, first: Ints, similarity: float) -> Ints:
    """Merges (group, state) pairs of similar text, in order of first appearance [n_pairs].

    Only distinct texts are compared: a text that comes again matches the same cluster again.
    """
    cluster = np.zeros(len(pairs), np.int64)
    opened: dict[int, list[int]] = {}
    matchers: list[SequenceMatcher[str]] = []
    for pair in np.argsort(first).tolist():
        group, state = divmod(int(pairs[pair]), len(table.states))
        candidates = opened.setdefault(group, [])
        match = _first_match(table.states[state], [(c, matchers[c]) for c in candidates], similarity)
        if match is None:
            match = len(matchers)
            candidates.append(match)
            matchers.append(SequenceMatcher(None, "", table.states[state]))
        cluster[pair] = match
    return cluster


def _first_match(text: str, clusters: Sequence[tuple[int, SequenceMatcher[str]]], similarity: float) -> int | None:
    for index, matcher in clusters:
        matcher.set_seq1(text)
        # The first two are cheap upper bounds of the third.
        if all(ratio() >= similarity for ratio in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)):
            return index
    return None
