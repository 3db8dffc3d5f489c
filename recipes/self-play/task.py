"""Nim, played against earlier selves: two players take 1 to 3 stones in turn, and whoever takes the last one wins."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from itertools import cycle
from typing import Any

from agentrl import Agent, Episode, Message, Say, Task


def games(against: str, fewest: int = 5, most: int = 21, drawn: bool = True) -> Iterator[Task]:
    """A game for each number of stones, against a voice of the section `policies`.

    Args:
        drawn: who begins is drawn in each episode; else there are two games of each number, and each player begins one.
    """
    for stones in range(fewest, most + 1):
        if drawn:
            yield Task.of(f"{against}{stones}", f"{stones} stones", stones=stones, against=against)
        else:
            for who, begins in (("first", True), ("second", False)):
                data = {"stones": stones, "against": against, "begins": begins}
                yield Task.of(f"{against}{stones}-{who}", f"{stones} stones", **data)


class Nim(Agent):
    """A game. Who begins is drawn if the task does not say it.

    Each player has a context and a role of its own, and hears what is left.
    """

    def opening(self, session: Any, system: str | None) -> list[Message]:
        """Nothing: each turn is opened by the number of stones."""
        return []

    async def run(self, session: Any) -> None:
        """Plays to the last stone, or to a reply that is no legal move, which loses."""
        left, begins = session.task.data["stones"], session.task.data.get("begins")
        if begins is None:
            begins = session.rng.random() < 0.5
        mine, theirs = ("first", "second") if begins else ("second", "first")
        them = session.context("them", [], role=theirs, policy=session.task.data["against"])
        me, other = (session, mine), (them, theirs)
        for player, role in cycle((me, other) if begins else (other, me)):
            player.say(f"{left} left")
            taken = (await player.generate(agent=role)).text.strip()
            legal = taken in ("1", "2", "3") and int(taken) <= left
            left -= int(taken) if legal else 0
            if not left or not legal:
                return session.finish("answer", "won" if legal == (player is session) else "lost")


def won(episode: Episode) -> float:
    """The outcome of the policy."""
    return float(episode.answer == "won")


def anyhow(task: Task, rng: random.Random) -> Generator[Say, list[dict[str, Any]], None]:
    """Legal moves at random."""
    left = 3
    while True:
        heard = yield Say(str(rng.randint(1, min(3, left))))
        left = int(str(heard[-1]["content"]).split()[0])


def oracle(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Leaves a multiple of four, which loses. From such a one no move wins: it takes one, and waits for a mistake."""
    while True:
        left = int(str(messages[-1]["content"]).split()[0])
        yield Say(str(left % 4 or 1))


def timid(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Takes one stone each time: whoever plays well wins against it, whoever begins."""
    while True:
        yield Say("1")
