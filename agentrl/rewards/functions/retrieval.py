"""Retrieval rewards: recall of the gold evidence, and the gain of each turn."""

from __future__ import annotations

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.verifiers import gold, normalise
from agentrl.types.episode import Episode, Turn
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
    wanted = {normalise(piece) for piece in gold(task, key)}
    left, shares = set(wanted), []
    for turn in episode.turns:
        shown = [f" {normalise(result)} " for result in results(turn, search_tools)]
        found = {piece for piece in left if any(f" {piece} " in text for text in shown)}
        left -= found
        shares.append(len(found) / len(wanted))
    return shares


def results(turn: Turn, search_tools: list[str] | None, but: str = "") -> list[str]:
    """The results of the successful calls of a turn: of `search_tools` or all tools, without those of tool `but`."""
    return [
        call.result
        for call in turn.calls
        if call.outcome == "ok" and call.name != but and (search_tools is None or call.name in search_tools)
    ]
