"""Calibration rewards."""

from __future__ import annotations

import math
import re

import msgspec

from agentrl.registry import checks
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.answers.comparers import CONFIDENCE
from agentrl.rewards.functions.maths import Metric, with_correctness
from agentrl.types.episode import Episode
from agentrl.types.task import Task


@reward(source="RLCR, damanimehul/RLCR@8904bed; weights there: 0.5 format, 0.5 correct, 0.5 brier", bounds=(0, 1))
def brier(
    task: Task, episode: Episode, *, key: str = "answer", metric: Metric = "exact_match", pattern: str = CONFIDENCE
) -> Scored:
    """1 - (correct - confidence)^2; 0 without an answer or without a confidence between 0 and 1.

    Args:
        metric: correctness of the answer without the confidence.
        pattern: regular expression of the confidence, in the answer or else the last turn: group 1 the number, group 2
            (if there is one) a percent sign.
    """
    expression = checks.pattern(pattern)
    if episode.answer is None:
        return Scored(0.0, "no answer")
    texts = [episode.answer, *(turn.text for turn in episode.own_turns[-1:])]
    found = next((match for text in texts if (match := expression.search(text))), None)
    confidence = _number(found) if found else None
    if confidence is None:
        return Scored(0.0, "no confidence between 0 and 1")
    sure = confidence

    def scored(correct: float) -> Scored:
        return Scored(1.0 - (correct - sure) ** 2, f"correct {correct:g}, confidence {sure:g}")

    answering = msgspec.structs.replace(episode, answer=expression.sub("", episode.answer).strip())
    return with_correctness(metric, task, answering, key, scored)


def _number(match: re.Match[str]) -> float | None:
    try:
        value = float(match[1])
    except ValueError:
        return None
    if match.re.groups > 1 and match[2]:
        value /= 100
    return value if 0.0 <= value <= 1.0 else None


@reward(source="DRM, arXiv:2510.11457: confidence from the probabilities of the tokens", bounds=(0, 1))
def token_confidence(episode: Episode) -> float | None:
    """Geometric mean of the probabilities of the policy's tokens, exp(mean log p): 0 to 1. None without tokens.

    The log-probabilities are those of sampling, under its temperature.
    """
    nodes = [episode.nodes[turn.node] for turn in episode.own_turns if episode.nodes]
    found = [value for node in nodes if node.logprobs is not None for value in node.logprobs]
    return math.exp(sum(found) / len(found)) if found else None
