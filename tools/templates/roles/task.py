"""Two roles: a guide knows which thing is wanted and says one word; a finder, who does not know it, takes a thing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator

from agentrl import Agent, Episode, Message, Say, Session, Task

COLOURS, KINDS = ("red", "blue", "green", "white"), ("cup", "box", "pen", "hat")


def shelves(n: int = 128, split: str = "train") -> Iterator[Task]:
    """Yields tasks: of the wanted thing's two words, one alone tells it from the others. `test` has other shelves."""
    every = [
        (colour, kind, other, another, by_kind)
        for colour, other in itertools.permutations(COLOURS, 2)
        for kind, another in itertools.permutations(KINDS, 2)
        for by_kind in (True, False)
    ]
    random.Random(0).shuffle(every)
    half = len(every) // 2
    chosen = every[:half] if split == "train" else every[half:]
    for k, (colour, kind, other, another, by_kind) in enumerate(chosen[:n]):
        wanted, clue = f"{colour} {kind}", kind if by_kind else colour
        shelf = [wanted, f"{colour} {another}" if by_kind else f"{other} {kind}", f"{other} {another}"]
        random.Random(k).shuffle(shelf)
        yield Task.of(
            f"{split}{k}",
            f"{', '.join(shelf)}. Wanted: {wanted}. Say one word to the finder.",
            shelf=shelf,
            wanted=wanted,
            clue=clue,
        )


class Pair(Agent):
    """Both roles are the policy, each in a conversation of its own. With `policy="other"` another policy takes one."""

    async def run(self, session: Session) -> None:
        wanted, shelf = session.task.data["wanted"], session.task.data["shelf"]
        opening: Message = {"role": "user", "content": f"{', '.join(shelf)}. The guide says a word. Say what you take."}
        finder = session.context("finder", [opening], role="finder")
        for attempt in ("first", "second"):
            clue = (await session.generate(agent="guide")).text.split()[:1]
            finder.say(f"The guide: {''.join(clue)}")
            taken = (await finder.generate()).text.strip()
            if taken == wanted:
                return session.finish("answer", attempt)
            session.say(f"The finder took: {taken}")
        return session.finish("answer", "none")


def found(episode: Episode) -> float:
    """Returns 1 if the first thing was right, one half for the second. It is the reward of both roles."""
    return {"first": 1.0, "second": 0.5}.get(episode.answer or "", 0.0)


def oracle(task: Task, rng: random.Random, context: str) -> Generator[Say, list[Message], None]:
    """Plays both roles: the guide says the word that tells the things apart, the finder takes what has it."""
    while True:
        yield Say(task.data["clue"] if context == "main" else task.data["wanted"])


def naive(task: Task, rng: random.Random, context: str, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Plays both roles without foresight: either word of the wanted thing, and any thing that has the word."""
    while True:
        if context == "main":
            yield Say(rng.choice(task.data["wanted"].split()))
        else:
            clue = str(messages[-1]["content"]).split()[-1]
            yield Say(rng.choice([thing for thing in task.data["shelf"] if clue in thing.split()]))
