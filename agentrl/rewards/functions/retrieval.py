"""What a searcher found: recall of the gold evidence, and what each turn added to it."""

from __future__ import annotations

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.verifiers import gold, normalise
from agentrl.types.episode import Episode, Turn
from agentrl.types.task import Task


@reward(source="recall of gold passages (FrugalRAG, arXiv:2507.07634, title_recall)")
def retrieval_recall(task: Task, episode: Episode, *, key: str = "evidence", tools: list[str] | None = None) -> float:
    """Share of the gold pieces of evidence that occur in what the tools showed.

    Args:
        key: where in `task.data` the evidence is: titles, document ids or sentences. A piece occurs if its words
            (SQuAD normalisation) stand together in a result.
        tools: only results of these; default: of all.
    """
    return sum(new_evidence(task, episode, key, tools))


@reward(source="marginal recall of a turn; its sum is retrieval_recall")
def retrieval_utility(
    task: Task, episode: Episode, *, key: str = "evidence", tools: list[str] | None = None
) -> list[float | None]:
    """Per turn: the share of the gold evidence that it was the first to find; None for a turn that called no tool.

    Args:
        key, tools: as in `retrieval_recall`.
    """
    shares = new_evidence(task, episode, key, tools)
    return [share if results(turn, tools) else None for turn, share in zip(episode.turns, shares, strict=True)]


def new_evidence(task: Task, episode: Episode, key: str, tools: list[str] | None) -> list[float]:
    """Per turn, the share of the evidence that no earlier turn had found."""
    wanted = {normalise(piece) for piece in gold(task, key)}
    left, shares = set(wanted), []
    for turn in episode.turns:
        shown = [f" {normalise(result)} " for result in results(turn, tools)]
        found = {piece for piece in left if any(f" {piece} " in text for text in shown)}
        left -= found
        shares.append(len(found) / len(wanted))
    return shares


def results(turn: Turn, tools: list[str] | None) -> list[str]:
    """What the calls of a turn that came off showed."""
    return [call.result for call in turn.calls if call.outcome == "ok" and (tools is None or call.name in tools)]
