"""Rewards of length, in sampled tokens of the whole episode."""

from __future__ import annotations

import math

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.maths import Metric, with_correctness
from agentrl.rewards.functions.verifiers import gold
from agentrl.types.episode import Episode
from agentrl.types.figures.sums import reaches
from agentrl.types.task import Task


@reward(source="LASER, arXiv:2505.15612, Eq. 2 and Table 2: lambda(y) S(y) = 1[correct] alpha 1[L(y) <= L_T]")
def laser(
    task: Task,
    episode: Episode,
    *,
    target: int,
    alpha: float = 0.5,
    key: str = "answer",
    metric: Metric = "exact_match",
) -> float:
    """`alpha` for a right answer within `target` sampled tokens, else 0. Combine it with a reward for correctness.

    LASER with one fixed target; LASER-D's targets by task difficulty are not implemented.
    """
    if episode.answer is None or episode.reply_tokens > target:
        gold(task, key)  # a task without a gold answer is an error all the same
        return 0.0
    return with_correctness(metric, task, episode, key, lambda correct: alpha * float(reaches(correct, 1.0)))


@reward(source="DAPO, arXiv:2503.14476, Eq. 13; volcengine/verl@b178a3c reward_manager/dapo.py", bounds=(-math.inf, 0))
def overlong(episode: Episode, *, max_tokens: int = 20480, buffer: int = 4096, factor: float = 1.0) -> float:
    """min(-(length - (max_tokens - buffer)) / buffer * factor, 0), not below -factor.

    The paper is flat at -1 beyond `max_tokens`, where the authors' code relies on truncation.
    """
    over = episode.reply_tokens - (max_tokens - buffer)
    return -factor * min(max(over / buffer, 0.0), 1.0)


@reward(source="GCPO of GeometryZero, arXiv:2506.07160: a reward for longer reasoning", bounds=(0, 1))
def long_reply(episode: Episode, *, longest: int) -> float:
    """min(1, length / longest): rewards longer reasoning. Give it a small weight.

    Args:
        longest: sampled tokens from which on the reward does not grow.
    """
    return min(1.0, episode.reply_tokens / longest)
