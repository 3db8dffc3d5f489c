"""Rewards of episodes with several tries (agent `retrying_agent`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from agentrl.rewards.declare import Scored, reward
from agentrl.types.episode import Episode

Of = Literal["last", "first", "best", "gain"]


@reward(per_turn=lambda settings: bool(settings.get("turns")))
def tries(episode: Episode, info: Mapping[str, Any], *, of: Of = "last", turns: bool = False) -> float | Scored:
    """Score of a try in `info["tries"]`: of the last, the first or the best; or the gain, the last less the first.

    Without a finished try 0.

    Args:
        turns: scores every try, at its last turn: with `gain` its score less that of the try before (the first
            counts from 0), otherwise its score.
    """
    found = list(info.get("tries") or ())
    scores = [float(each["score"]) for each in found]
    note = f"tries: {', '.join(f'{score:g}' for score in scores) or 'none'}"
    if turns:
        before = [0.0, *scores] if of == "gain" else [0.0] * len(scores)
        values: list[float | None] = [0.0] * len(episode.turns)
        for each, score, base in zip(found, scores, before, strict=False):
            if each["turns"]:
                values[each["turns"][-1]] = score - base
        return Scored(values, note)
    if not scores:
        return Scored(0.0, note)
    value = {"last": scores[-1], "first": scores[0], "best": max(scores), "gain": scores[-1] - scores[0]}[of]
    return Scored(value, note)
