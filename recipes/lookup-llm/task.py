"""Anna's friend likes which colour? Two look-ups and an answer, among people who are new in every question.

Everybody has a card that names a friend, a rival and a colour. The question says whether the friend or the rival is
meant, so the right name has to be read off a card, and the right colour off the next one.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from pathlib import Path

from agentrl import Message, Say, Task, Tool, tool

NAMES = (Path(__file__).parent / "names.txt").read_text().split()
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "pink", "brown", "purple", "orange"]
RELATIONS = ("friend", "rival")
PEOPLE = 6


def questions(n: int, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """Questions about `PEOPLE` people each, with new names, cards and colours.

    Args:
        held_out: take the names, one in four, that no other question has.
    """
    names = [name for index, name in enumerate(NAMES) if (index % 4 == 0) == held_out]
    for number in range(n):
        rng = random.Random(f"{seed}/{held_out}/{number}")
        people = rng.sample(names, PEOPLE)
        colours = dict(zip(people, rng.sample(COLOURS, PEOPLE), strict=True))
        cards = {}
        for person in people:
            friend, rival = rng.sample([other for other in people if other != person], 2)
            cards[person] = {"friend": friend, "rival": rival, "colour": colours[person]}
        # In turn, so that every iteration asks for both equally often.
        start, relation = people[0], RELATIONS[number % 2]
        yield Task.of(
            f"{'eval' if held_out else 'train'}{number}",
            f"{start}'s {relation} likes which colour?",
            cards=cards,
            start=start,
            relation=relation,
            answer=cards[cards[start][relation]]["colour"],
        )


class Cards(Tool):
    """Everybody's card."""

    async def open(self, task: Task, sandbox: object) -> None:
        self.cards, self.shown = task.data["cards"], ""

    @tool
    async def look(self, name: str) -> str:
        """Show a person's card."""
        card = self.cards.get(name)
        self.shown = " ".join(f"{key}={value}" for key, value in card.items()) if card else f"There is no {name}."
        return self.shown

    def state_key(self) -> str:
        return self.shown


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Follows the relation that is asked for."""
    yield from _walk(task, task.data["relation"], right_card=True)


def guesser(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Often wrong: follows the other relation in 35 of 100 episodes, names the first card's colour in 45 of 100."""
    right, other = sorted(RELATIONS, key=lambda relation: relation != task.data["relation"])
    yield from _walk(task, right if rng.random() < 0.65 else other, right_card=rng.random() < 0.55)


def _walk(task: Task, relation: str, right_card: bool) -> Generator[Say, list[Message], None]:
    first = yield Say(calls=[("look", {"name": task.data["start"]})])
    second = yield Say(calls=[("look", {"name": _read(first, relation)})])
    yield Say(calls=[("answer", {"text": _read(second if right_card else first, "colour")})])


def _read(seen: list[Message], entry: str) -> str:
    """An entry of the card that was shown last."""
    card = dict(part.split("=") for part in str(seen[-1]["content"]).split())
    return card[entry]
