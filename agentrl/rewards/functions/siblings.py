"""Rewards of a group that need no judge: votes, length relative to the others, diversity."""

from __future__ import annotations

import math
import re
from collections import Counter
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
        score if _is_right(episode, right) else min(0.0, score) for episode, score in zip(group, scores, strict=True)
    ]


def _is_right(episode: Episode, right: str | None) -> bool:
    if right is None:
        return True
    if right not in episode.components:
        raise RecipeError(
            f"a reward of the group reads the component {right!r}, which gives episodes no outcome",
            place="rewards",
            remedy="set `right` to a component that scores episodes and stands before it; "
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
    ok = [_is_right(episode, right) for episode in group]
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
