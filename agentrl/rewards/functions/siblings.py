"""Rewards without a judge that compare the members of a group, or measure how varied replies are."""

from __future__ import annotations

import math
import re
from collections import Counter
from statistics import stdev
from typing import Literal

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.answers.comparers import Comparer, classes, said, then
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.figures.sums import reaches

Kind = Literal["answer", "actions"]


def _actions(episode: Episode) -> str | None:
    return "\n".join(turn.action for turn in episode.own_turns) or None


def _answer(episode: Episode) -> str | None:
    return said(episode) or None


@reward(source="TTRL, arXiv:2504.16084: 1[answer = majority answer]", bounds=(0, 1))
def majority_vote(group: list[Episode], *, comparer: Comparer = "squad") -> list[float | None]:
    """1 for the members whose answer is the most frequent one of the group, else 0.

    Of equally frequent answers, the one that the earlier member gave wins. A member without an answer has no vote, and
    gets 0. A group without an answer, or of one, is not scored.

    Args:
        comparer: compares answers: `squad`, `exact`, `numeric` or `maths` (TTRL's tasks are maths).
    """

    def voted(answers: list[int | None]) -> list[float | None]:
        votes = Counter(answer for answer in answers if answer is not None)
        if len(group) < 2 or not votes:
            return [None] * len(group)
        chosen = max(votes, key=votes.__getitem__)  # the first of equals
        return [float(answer == chosen) for answer in answers]

    return then(classes([_answer(episode) for episode in group], comparer), voted)


@reward(
    source="Kimi k1.5, arXiv:2501.12599, section 2.3.3: lambda = 0.5 - (len - min) / (max - min)", bounds=(-0.5, 0.5)
)
def relative_length(group: list[Episode], *, right: str | None = None) -> list[float | None]:
    """0.5 for the shortest member to -0.5 for the longest, in sampled tokens; a wrong member gets 0 at most.

    All get 0 if their lengths are equal. A group of one is not scored.

    Args:
        right: the component by which members are right (at least 1), for example exact_match; None: all are.

    Raises:
        RecipeError: the component does not exist, or it scores turns.
    """
    lengths = [episode.reply_tokens for episode in group]
    shortest, longest = min(lengths), max(lengths)
    if len(group) < 2:
        return [None] * len(group)
    if shortest == longest:
        return [0.0] * len(group)
    scores = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [
        score if right is None or is_right(episode, right) else min(0.0, score)
        for episode, score in zip(group, scores, strict=True)
    ]


def is_right(episode: Episode, right: str, by: str = "relative_length") -> bool:
    """Returns True if a component of an episode is at least 1.

    Args:
        by: the reward that asks, for the error.

    Raises:
        RecipeError: the component does not exist, or it scores turns.
    """
    if right not in episode.components:
        raise RecipeError(
            f"{by} reads the component {right!r}, which gives episodes no outcome",
            place="rewards",
            remedy="name a component that scores episodes and stands before it; "
            f"here: {', '.join(episode.components) or 'none'}",
        )
    value = episode.components[right]
    return value is not None and reaches(value, 1.0)


@reward(source="DARLING, arXiv:2509.02534: mean distance to the other members; its learned classifier is equality here")
def diversity(group: list[Episode], *, of: Kind = "answer", comparer: Comparer = "squad") -> list[float | None]:
    """Share of the other members that differ: 1 if no other did the same, 0 if all did.

    A group of one is not scored. Members without an answer, or without an action, are equal. Combine it with a reward
    for correctness: alone it rewards noise.

    Args:
        of: the compared parts: the answers, or the actions of all turns of the policy.
        comparer: compares answers: `squad`, `exact`, `numeric` or `maths`.
    """

    def scored(keys: list[int | None]) -> list[float | None]:
        counts, others = Counter(keys), len(group) - 1
        return [(others + 1 - counts[key]) / others if others else None for key in keys]

    if of == "actions":
        return scored(classes([_actions(episode) for episode in group], "exact"))
    return then(classes([_answer(episode) for episode in group], comparer), scored)


@reward(source="TTRV, arXiv:2510.06783: the share of the sampled answers that are this one", bounds=(0, 1))
def frequency(group: list[Episode], *, comparer: Comparer = "squad") -> list[float | None]:
    """Share of the group's members that gave the same answer as this one; 0 for a member without an answer.

    Needs no reference. A group of one is not scored.

    Args:
        comparer: compares answers: `squad`, `exact`, `numeric` or `maths`.
    """

    def scored(keys: list[int | None]) -> list[float | None]:
        counts = Counter(keys)
        return [0.0 if key is None else counts[key] / len(group) if len(group) > 1 else None for key in keys]

    return then(classes([_answer(episode) for episode in group], comparer), scored)


@reward(source="TTRV, arXiv:2510.06783: the entropy of the distribution of the sampled answers", bounds=(0, math.inf))
def answer_entropy(group: list[Episode], *, comparer: Comparer = "squad") -> list[float | None]:
    """Entropy of the group's answers in nats, the same for all members. Giving no answer counts as an answer.

    Give it a weight below 0 to reward agreement. A baseline of the group takes it out again. A group of one is not
    scored.

    Args:
        comparer: compares answers: `squad`, `exact`, `numeric` or `maths`.
    """

    def scored(keys: list[int | None]) -> list[float | None]:
        shares = [count / len(group) for count in Counter(keys).values()]
        entropy = -sum(share * math.log(share) for share in shares)
        return [entropy + 0.0 if len(group) > 1 else None] * len(group)

    return then(classes([_answer(episode) for episode in group], comparer), scored)


@reward(source="GCPO of GeometryZero, arXiv:2506.07160: group contrastive masking", bounds=(-1, 1))
def contrast(
    group: list[Episode], *, right: str, tool: str | None = None, mark: str | None = None, margin: float = 0.0
) -> list[float | None]:
    """1 for members that did something if it helped in this group, -1 if it harmed; 0 for the members that did not.

    It helped if the share of right members is larger, by more than `margin`, among those that did it; it harmed if it
    is smaller. If all did it, or none, nobody gets anything. A group of one is not scored.

    Args:
        right: the component by which members are right (at least 1), for example maths.
        tool: what they did: they called this tool, and the call was carried out.
        mark: what they did: a turn of the policy holds a match of this regular expression. One of the two.

    Raises:
        RecipeError: the component does not exist, or it scores turns; or not one of `tool` and `mark` is set.
    """
    if (tool is None) == (mark is None):
        raise RecipeError(
            "contrast wants one of 'tool' and 'mark'", place="rewards", remedy="tool: python, for example"
        )
    if len(group) < 2:
        return [None] * len(group)
    did = [_did(episode, tool, mark) for episode in group]
    ok = [is_right(episode, right, "contrast") for episode in group]
    if all(did) or not any(did):
        return [0.0] * len(group)
    gain = _share(ok, did, True) - _share(ok, did, False)
    sign = float((gain > margin) - (gain < -margin))
    return [sign if each else 0.0 for each in did]


def _did(episode: Episode, tool: str | None, mark: str | None) -> bool:
    if mark is not None:
        return any(re.search(mark, turn.text) for turn in episode.own_turns)
    return any(call.name == tool and call.outcome == "ok" for turn in episode.own_turns for call in turn.calls)


def _share(ok: list[bool], did: list[bool], which: bool) -> float:
    chosen = [good for good, each in zip(ok, did, strict=True) if each is which]
    return sum(chosen) / len(chosen)


@reward(source="LongWriter-Zero, arXiv:2506.18841: advantage averaging, A = mean over rewards of (r - mean) / std")
def mean_advantage(group: list[Episode], *, of: list[str], eps: float = 1e-6) -> list[float | None]:
    """Mean of the advantages that each of several components alone would give: no scale outweighs another.

    (r - mean) / (std + eps) over the group (sample standard deviation), averaged over the components. Give these the
    weight 0, and take a credit that keeps it: `grpo: {std: none}`. A group of one is not scored. A component that does
    not score a member counts 0 for it.

    Args:
        of: components that score episodes.

    Raises:
        RecipeError: a component does not exist, or it scores turns.
    """
    if len(group) < 2:
        return [None] * len(group)
    sums = [0.0] * len(group)
    for name in of:
        values = [_outcome(episode, name) for episode in group]
        known = [value for value in values if value is not None]
        mean = sum(known) / max(len(known), 1)
        spread = stdev(known) if len(known) > 1 else 0.0
        for k, value in enumerate(values):
            sums[k] += 0.0 if value is None else (value - mean) / (spread + eps)
    return [each / len(of) for each in sums]


def _outcome(episode: Episode, name: str) -> float | None:
    if name not in episode.components:
        raise RecipeError(
            f"mean_advantage reads the component {name!r}, which gives episodes no outcome",
            place="rewards",
            remedy=f"name components that score episodes and stand before it; here: {', '.join(episode.components)}",
        )
    return episode.components[name]


@reward(source="MultiRole-R1, arXiv:2507.20187: lexical diversity; the mix of its measures is ours", bounds=(0, 1))
def lexical_diversity(episode: Episode, *, window: int = 50) -> float:
    """Mean of two measures of the words of the policy's replies, without case, tags and punctuation; 0 without words.

    - Share of different words (type-token ratio), averaged over all windows of `window` words, so that long texts do
      not lose; of a shorter text over all of it.
    - Entropy of the words divided by that of equally many different ones; 0 for one word.
    """
    text = " ".join(turn.text for turn in episode.own_turns).lower()
    words = re.findall(r"\w+", re.sub(r"</?\w+>", " ", text))
    if not words:
        return 0.0
    wide = min(window, len(words))
    shares = [len({*words[start : start + wide]}) / wide for start in range(len(words) - wide + 1)]
    parts = [count / len(words) for count in Counter(words).values()]
    entropy = -sum(part * math.log(part) for part in parts) / math.log(len(words)) if len(words) > 1 else 0.0
    return (sum(shares) / len(shares) + entropy) / 2
