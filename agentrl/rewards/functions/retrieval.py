"""Retrieval rewards: recall of the gold evidence, the gain of each turn, and R1-Router's of steps and answers."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object
from agentrl.rewards.declare import reward
from agentrl.rewards.functions.answers.comparers import normalise
from agentrl.rewards.functions.verifiers import gold, word_f1
from agentrl.types.episode import MAIN, Episode, Turn
from agentrl.types.errors import TaskError
from agentrl.types.task import Task


@reward(source="recall of gold passages (FrugalRAG, arXiv:2507.07634, title_recall)")
def retrieval_recall(
    task: Task, episode: Episode, *, key: str = "evidence", search_tools: list[str] | None = None
) -> float:
    """Share of the gold pieces of evidence that occur in the tools' results.

    Args:
        key: the field of `task.data` with the evidence: titles, document ids or sentences. A piece occurs if its words
            (SQuAD normalisation) are adjacent in a result.
        search_tools: only results of these tools; default: all.
    """
    return sum(new_evidence(task, episode, key, search_tools))


@reward(source="marginal recall of a turn; its sum is retrieval_recall")
def retrieval_utility(
    task: Task, episode: Episode, *, key: str = "evidence", search_tools: list[str] | None = None
) -> list[float | None]:
    """Per turn: the share of the gold evidence that it found first; None for a turn without tool calls.

    Args:
        key, search_tools: as in `retrieval_recall`.
    """
    shares = new_evidence(task, episode, key, search_tools)
    return [share if results(turn, search_tools) else None for turn, share in zip(episode.turns, shares, strict=True)]


def new_evidence(task: Task, episode: Episode, key: str, search_tools: list[str] | None) -> list[float]:
    """Per turn, the share of the evidence that no earlier turn had found."""
    found, wanted = new_pieces(task, episode, key, search_tools)
    return [sum(counts) / wanted for counts in found]


def new_pieces(task: Task, episode: Episode, key: str, search_tools: list[str] | None) -> tuple[list[list[int]], int]:
    """Counts the pieces of evidence that no earlier result had, per turn and result; and all that there are."""
    wanted = {normalise(piece) for piece in gold(task, key)}
    left, counts = set(wanted), []
    for turn in episode.turns:
        counts.append([0] * len(shown := results(turn, search_tools)))
        for place, result in enumerate(shown):
            text = f" {normalise(result)} "
            found = {piece for piece in left if f" {piece} " in text}
            left -= found
            counts[-1][place] = len(found)
    return counts, len(wanted)


def results(turn: Turn, search_tools: list[str] | None, but: str = "") -> list[str]:
    """The results of the successful calls of a turn: of `search_tools` or all tools, without those of tool `but`."""
    return [
        call.result
        for call in turn.calls
        if call.outcome == "ok" and call.name != but and (search_tools is None or call.name in search_tools)
    ]


NONE = "none"
"""The query and the base of a step that searches no more."""
SIMILARITY = "agentrl.tools.builtin.search.minilm:similarity"


@reward(source="R1-Router, arXiv:2505.22095; OpenBMB/R1-Router@c0a0c1b, reward_score/step.py: ret_accuracy_reward")
async def base_routing(
    task: Task, episode: Episode, *, key: str = "steps", tool: str = "search", scorer: Callable[..., Any] | None = None
) -> list[float | None]:
    """Per step: half the cosine of its query and the gold one, and half for the right base, if it names one alone.

    Step n of the episode is compared with gold step n. The answering turn is the last step: its query and base are
    `none`, as are those of gold after its last step. A turn with calls that cannot be parsed scores 0. Any other turn
    without a search gets None and does not count as a step.

    Differs from the authors': the history of their steps is the gold steps, ours is the policy's own; their
    embeddings are those of BGE.

    Args:
        key: the field of `task.data` with the gold steps: a list of `{query: ..., base: ...}`.
        tool: the tool whose calls are steps.
        scorer: `./file.py:function`, (query, gold query) -> cosine, may be async. Default: of MiniLM's embeddings
            (docs/search.md).
    """
    compare = scorer or load_object(SIMILARITY, Path())
    wanted = _steps(task, key)
    scores: list[float | None] = [None] * len(episode.turns)
    turns = [turn for turn in episode.own_turns if turn.context == MAIN]
    steps = [turn for turn in turns if _asked(turn, tool) or not turn.valid or (turn is turns[-1] and episode.answer)]
    for step, turn in enumerate(steps):
        if not turn.valid:
            scores[turn.index] = 0.0
            continue
        query, base = wanted[step] if step < len(wanted) else (NONE, NONE)
        asked = _asked(turn, tool) or [(NONE, NONE)]
        alike = 1.0 if asked[0][0] == query else compare(asked[0][0], query)
        alike = await alike if inspect.isawaitable(alike) else alike
        right = len(asked) == 1 and asked[0][1] == base
        scores[turn.index] = 0.5 * float(alike) + 0.5 * right
    return scores


@reward(source="R1-Router, arXiv:2505.22095; OpenBMB/R1-Router@c0a0c1b, reward_score/step.py: ans_accuracy_reward")
def answer_recall(task: Task, episode: Episode, *, key: str = "answer", short: int = 5) -> float:
    """1 if the answer holds all words of the gold answer that it is nearest to (by F1), else 0.

    Of one gold answer of more than `short` words it is the share of them that the answer holds. Words are those of the
    SQuAD normalisation, where the authors' are of VQA's.

    Args:
        key: where in `task.data` the gold answer is, a string or a list of them.
    """
    references = gold(task, key)
    answer = episode.answer or ""
    nearest = max(references, key=lambda reference: word_f1(answer, reference))
    words = normalise(nearest).split()
    held = (Counter(words) & Counter(normalise(answer).split())).total() / len(words) if words else 0.0
    if len(references) == 1 and len(nearest.split()) > short:
        return held
    return float(held == 1.0)


def _steps(task: Task, key: str) -> list[tuple[str, str]]:
    found = task.data.get(key)
    try:
        if not isinstance(found, list | tuple):
            raise TypeError(found)
        return [(str(step["query"]).lower(), str(step["base"])) for step in found]
    except (KeyError, TypeError):
        raise TaskError(
            f"gold steps {key!r} are {found!r}",
            place=f"task {task.id}",
            remedy="a list of {query: ..., base: ...}, or set the reward's `key`",
        ) from None


def _asked(turn: Turn, tool: str) -> list[tuple[str, str]]:
    """The queries and bases of a turn."""
    arguments: list[Mapping[str, Any]] = [call.arguments for call in turn.calls if call.name == tool]
    return [(str(each.get("query", "")).lower(), str(each.get("base", ""))) for each in arguments]
