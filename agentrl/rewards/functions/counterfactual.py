"""Reward of a role: the correctness of the answer less that of the answer without the role."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isawaitable
from statistics import fmean
from typing import Any, Literal

import msgspec

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.maths import Metric, with_correctness
from agentrl.types.episode import Episode
from agentrl.types.task import Task


@reward(
    source="CCPO, arXiv:2603.21563, bhai114/ccpo@ea50d3a two_model_trainer.py; SHARP, arXiv:2602.08335",
    per_turn=True,
    bounds=(-1, 1),
)
async def counterfactual(
    group: list[Episode],
    task: Task,
    *,
    form: Literal["difference", "event"] = "difference",
    baseline: Literal["own", "group"] = "own",
    metric: Metric = "exact_match",
    key: str = "answer",
) -> list[list[float | None] | None]:
    """By role: the correctness of the answer less that of the answer without the role, for the role's last turn.

    The agent asks for the answers without a role, and tells them: `session.info["without"] = {NAME: ANSWER}`, by the
    name of a context or a role. An episode that tells none is not scored; turns of other roles get None.

    Args:
        form: `difference`, or `event`: 1 if the answer is right and without the role it would not be, -1 for the
            opposite, else 0.
        baseline: the answer without the role is that of the episode (`own`), or counts as correct as in the mean of the
            group (`group`).
        metric: correctness of an answer.
        key: the field of task.data that holds the gold answer.
    """
    alone = [
        {name: await _correctness(metric, task, episode, said, key) for name, said in _without(episode).items()}
        for episode in group
    ]
    means = {
        name: fmean(each[name] for each in alone if name in each) for name in {name for each in alone for name in each}
    }
    found: list[list[float | None] | None] = []
    for episode, without in zip(group, alone, strict=True):
        if not without:
            found.append(None)
            continue
        right = await _correctness(metric, task, episode, episode.answer, key)
        values = {
            name: _value(right, means[name] if baseline == "group" else own, form) for name, own in without.items()
        }
        last = {name: turn.index for turn in episode.turns for name in (turn.agent, turn.context)}
        placed = {last[name]: value for name, value in values.items() if name in last}
        found.append([placed.get(turn.index) for turn in episode.turns])
    return found


def _value(right: float, without: float, form: str) -> float:
    if form == "difference":
        return right - without
    return float(right > 0.5 > without) - float(right < 0.5 < without)


def _without(episode: Episode) -> Mapping[str, Any]:
    told = episode.info.get("without")
    return told if isinstance(told, Mapping) else {}


async def _correctness(metric: Metric, task: Task, episode: Episode, answer: Any, key: str) -> float:
    said = None if answer is None else str(answer)
    value: Any = with_correctness(metric, task, msgspec.structs.replace(episode, answer=said), key, float)
    return float(await value if isawaitable(value) else value)
