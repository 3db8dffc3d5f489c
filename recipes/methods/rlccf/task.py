"""RLCCF: several policies answer the same question, and their weighted vote is the label of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl import Agent, Episode


class Collective(Agent):
    """Every member answers the question, none sees another's answer. `info["answers"]` has the answers by member.

    Args:
        members: policies: `policy`, the main one, whose answer is that of the episode, and names under `policies`.
    """

    def __init__(self, members: Sequence[str] = ("policy", "second")) -> None:
        self.members = list(members)

    async def run(self, session: Any) -> None:
        """Asks every member once."""
        answers: dict[str, str | None] = {}
        for member in self.members:
            asked = session
            if member != "policy":
                asked = session.context(member, [*session.task.instruction], policy=member, tools=[])
            answers[member] = (await asked.generate()).answer
        session.info["answers"] = answers
        session.finish("answer", answers["policy"] or "")


def elected(answers: Mapping[str, Sequence[str | None]]) -> str | None:
    """Returns the answer with the most votes: a vote of a member weighs its self-consistency, which is the share of its
    most frequent answer. Of equals the first wins; None without an answer.

    Args:
        answers: the answers of each member to one question, one an episode.
    """
    votes: dict[str, float] = {}
    for given in answers.values():
        counts = Counter(answer for answer in given if answer is not None)
        consistency = max(counts.values(), default=0) / max(len(given), 1)
        for answer, count in counts.items():
            votes[answer] = votes.get(answer, 0.0) + consistency * count
    return max(votes, key=votes.__getitem__, default=None)


def agrees(
    group: list[Episode], *, member: str = "policy", voters: Literal["all", "own"] = "all"
) -> list[float | None]:
    """1 where the answer of a member is the elected one, else 0. A group without an answer is not scored.

    Args:
        voters: `all` members, or the member's `own` answers alone.
    """
    told: list[Mapping[str, str | None]] = [episode.info.get("answers", {}) for episode in group]
    names = dict.fromkeys(name for each in told for name in each) if voters == "all" else {member: None}
    chosen = elected({name: [_plain(each.get(name)) for each in told] for name in names})
    if chosen is None:
        return [None] * len(group)
    return [float(_plain(each.get(member)) == chosen) for each in told]


def _plain(answer: str | None) -> str | None:
    return None if answer is None else answer.strip()
