"""Rewards of length, in sampled tokens of the whole episode."""

from __future__ import annotations

import math

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.maths import Metric, with_correctness
from agentrl.rewards.functions.siblings import is_right
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

    LASER with one fixed target; `laser_d` has a target for each difficulty.
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


@reward(source="LASER-D, arXiv:2505.15612; hkust-nlp/Laser@78b09dd verl/utils/reward_score/length_penalty.py")
def laser_d(
    task: Task, group: list[Episode], *, right: str, first: int, alpha: float = 0.5, targets: str = "length_targets"
) -> list[float | None]:
    """`alpha` for a right member within the target of the group's difficulty, else 0.

    A group is `high` if at least two thirds of its members are right, `medium` from one third, else `low`. Combine it
    with a reward for correctness, and with the schedule `laser_d`, which sets the targets.

    Args:
        right: the component by which members are right (at least 1), for example exact_match.
        first: the target before the schedule has measured lengths.
        targets: the field of `task.data` with the target of each difficulty, which the schedule writes.

    Raises:
        RecipeError: the component does not exist, or it scores turns.
    """
    correct = [is_right(episode, right, "laser_d") for episode in group]
    target = task.data.get(targets, {}).get(difficulty(sum(correct), len(group)), first)
    return [
        alpha * float(good and episode.reply_tokens <= target) for good, episode in zip(correct, group, strict=True)
    ]


def difficulty(right: int, members: int) -> str:
    """Returns the difficulty of a group by its share of right members: `high`, `medium` or `low` accuracy."""
    return "high" if 3 * right >= 2 * members else "medium" if 3 * right >= members else "low"


@reward(source="arXiv:2502.03373; huggingface/open-r1 rewards.py get_cosine_scaled_reward")
def cosine_length(
    task: Task,
    episode: Episode,
    *,
    max_tokens: int,
    right: tuple[float, float] = (0.5, 1.0),
    wrong: tuple[float, float] = (-1.0, -0.5),
    key: str = "answer",
    metric: Metric = "exact_match",
) -> float:
    """A right answer is worth more if it is short, a wrong one if it is long; 0 tokens to `max_tokens` on a cosine.

    c + (d - c) (1 + cos(pi min(1, length / max_tokens))) / 2. For a right answer d, at length 0, is the upper bound of
    `right` and c, at the end, the lower; for a wrong one d is the lower bound of `wrong` and c the upper. An episode
    without an answer is wrong.

    Args:
        right, wrong: lowest and highest reward.
    """
    wave = (1.0 + math.cos(math.pi * min(1.0, episode.reply_tokens / max_tokens))) / 2

    def scored(correct: float) -> float:
        start, end = (right[1], right[0]) if reaches(correct, 1.0) else wrong
        return end + (start - end) * wave

    if episode.answer is None:
        gold(task, key)
        return scored(0.0)
    return with_correctness(metric, task, episode, key, scored)
