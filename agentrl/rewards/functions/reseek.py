"""ReSeek's JUDGE action: the agent judges whether each search result is useful, and is rewarded if it is right."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from agentrl.registry import checks
from agentrl.rewards.declare import reward
from agentrl.rewards.functions.answers.comparers import normalise
from agentrl.rewards.functions.retrieval import results
from agentrl.rewards.functions.verifiers import gold
from agentrl.types.episode import Episode, Turn
from agentrl.types.task import Task

TOOL = "judge"
JUDGEMENT = r"<judge>\s*(yes|no)\s*</judge>"


@reward(
    source="ReSeek (project page; no code released): match +0.3, accepting the useless -0.6, rejecting the useful -0.3"
)
async def evidence_judgement(
    task: Task,
    episode: Episode,
    *,
    key: str = "answer",
    search_tools: list[str] | None = None,
    pattern: str = JUDGEMENT,
    scorer: Callable[..., Any] | None = None,
    threshold: float = 0.7,
    match: float = 0.3,
    false_accept: float = -0.6,
    false_reject: float = -0.3,
) -> list[float | None]:
    """Per turn: whether its judgement of the previous results was right; None for a turn without a judgement.

    A result is useful if its score is above `threshold`. The judgement is read from the turn after the search: a call
    of the tool `judge`, or else words.

    Differs from ReSeek: its threshold of 0.7 is that of a reranker's score, while the default scorer here is the recall
    of words: set `scorer`, or adjust `threshold`. Words must be described in `agent.system`.

    Args:
        key: the field of `task.data` with the gold answer.
        search_tools: the search tools; default: all but `judge`.
        pattern: regular expression of a judgement in words, group 1 is yes or no.
        scorer: `./file.py:function`, (result, gold answer) -> 0..1, may be async: the authors use a reranker. Default:
            the share of the gold answer's words that are in the result, for the best gold answer.
    """
    expression = checks.pattern(pattern, re.IGNORECASE)
    references = gold(task, key)
    scores: list[float | None] = [None] * len(episode.turns)
    for index in range(1, len(episode.turns)):
        shown = results(episode.turns[index - 1], search_tools, but=TOOL)
        accepted = judgement(episode.turns[index], expression)
        if not shown or accepted is None:
            continue
        best = 0.0
        for reference in references:
            found: Any = (scorer or word_recall)("\n".join(shown), reference)
            best = max(best, float(await found if inspect.isawaitable(found) else found))
        scores[index] = judgement_reward(best, accepted, threshold, match, false_accept, false_reject)
    return scores


def judgement(turn: Turn, expression: re.Pattern[str]) -> bool | None:
    """Returns a turn's judgement of the results before it; None if it makes none."""
    for call in turn.calls:
        useful = call.arguments.get("useful")
        if call.name == TOOL and call.outcome == "ok" and isinstance(useful, bool):
            return useful
    said = expression.search(turn.text)
    return None if said is None else said[1].lower() == "yes"


def judgement_reward(
    score: float,
    accepted: bool,
    threshold: float = 0.7,
    match: float = 0.3,
    false_accept: float = -0.6,
    false_reject: float = -0.3,
) -> float:
    """The reward of one judgement of a result that scored `score`."""
    useful = score > threshold
    if accepted == useful:
        return match
    return false_accept if accepted else false_reject


def word_recall(result: str, reference: str) -> float:
    """Share of the reference's different words that are in the result."""
    wanted = set(normalise(reference).split())
    return len(wanted & set(normalise(result).split())) / len(wanted) if wanted else 0.0
