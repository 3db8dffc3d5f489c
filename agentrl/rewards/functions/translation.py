"""Metrics of translation: BLEU and chrF of one sentence, against its references. Written out here: no package."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.answers.comparers import said
from agentrl.rewards.functions.verifiers import gold
from agentrl.types.episode import Episode
from agentrl.types.task import Task

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKENS = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+|[^\w\s]|_")


@reward(source="BLEU (Papineni et al., 2002), of a sentence; smoothing 'exp' of sacreBLEU", bounds=(0, 1))
def bleu(task: Task, episode: Episode, *, key: str = "answer", order: int = 4) -> float:
    """Geometric mean of the clipped precisions of 1- to `order`-grams, with the brevity penalty: 0 to 1.

    Orders that the answer is too short for are left out (effective order). The k-th precision of 0 counts as
    1 / (2^k total). Words, marks, and Chinese and Japanese characters are tokens.

    Args:
        key: the field of `task.data` with the reference translation, or a list of them.
    """
    references = [words_of(text) for text in gold(task, key)]
    tokens = words_of(said(episode) or "")
    if not tokens:
        return 0.0
    logs, zeros = [], 0
    for n in range(1, min(order, len(tokens)) + 1):
        own, most = _grams(tokens, n), Counter[tuple[str, ...]]()
        for reference in references:
            most |= _grams(reference, n)
        shared, total = sum((own & most).values()), sum(own.values())
        if not shared:
            if n == 1:
                return 0.0
            zeros += 1
        logs.append(math.log(shared / total if shared else 1 / (2**zeros * total)))
    closest = min((len(each) for each in references), key=lambda length: (abs(length - len(tokens)), length))
    brevity = min(0.0, 1 - closest / len(tokens))
    return math.exp(brevity + sum(logs) / len(logs))


@reward(source="chrF (Popovic, 2015), of a sentence; sacreBLEU's settings", bounds=(0, 1))
def chrf(task: Task, episode: Episode, *, key: str = "answer", order: int = 6, beta: float = 2.0) -> float:
    """F score of the mean precision and recall of 1- to `order`-grams of characters without spaces: 0 to 1.

    Recall weighs `beta` times as much. Of several references the best counts.
    """
    answer = "".join((said(episode) or "").split())
    return max(_chrf(answer, "".join(text.split()), order, beta) for text in gold(task, key))


def words_of(text: str) -> list[str]:
    """The tokens of a text: words, marks, and Chinese and Japanese characters."""
    return _TOKENS.findall(text)


def _chrf(answer: str, reference: str, order: int, beta: float) -> float:
    precisions, recalls = [], []
    for n in range(1, order + 1):
        own, other = _grams(answer, n), _grams(reference, n)
        shared = sum((own & other).values())
        if own and other:
            precisions.append(shared / sum(own.values()))
            recalls.append(shared / sum(other.values()))
    if not precisions:
        return 0.0
    p, r = sum(precisions) / len(precisions), sum(recalls) / len(recalls)
    return (1 + beta**2) * p * r / (beta**2 * p + r) if p + r else 0.0


def _grams(items: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[k : k + n]) for k in range(len(items) - n + 1))
