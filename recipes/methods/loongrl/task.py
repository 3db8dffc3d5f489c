"""Questions about a text, each hidden behind a chain of keys among chains to other questions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from agentrl import Say, Task
from agentrl.types.episode import Episode

NAMES = ["Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana"]
COLOURS = ["red", "blue", "green", "black"]


def hidden(rng: random.Random, links: int, persons: int = 4, chains: int = 2) -> Task:
    """Draws a text and a question about one of its facts.

    Args:
        links: pairs of keys between the key that is given and the question; 0: the question itself is given.
        persons: facts of the text.
        chains: chains of pairs, of which one leads to the question. The others lead to questions about other persons.
    """
    names = rng.sample(NAMES, persons)
    facts = {name: rng.choice(COLOURS) for name in names}
    lines, start = [f"{name} is {colour}." for name, colour in facts.items()], f"{names[0]}?"
    if links:
        keys = ["".join(pair) for pair in rng.sample([*itertools.product("uvwxyz", repeat=2)], chains * links)]
        for k, name in enumerate(names[:chains]):
            own = [*keys[k * links : (k + 1) * links], f"{name}?"]
            lines += [f"{key}: {value}." for key, value in itertools.pairwise(own)]
        start = keys[0]
    rng.shuffle(lines)
    text = f"{' '.join(lines)} Start: {start}"
    return Task.of(text.replace(" ", "_"), text, answer=facts[names[0]], links=links)


def contains(task: Task, episode: Episode) -> float:
    """1 if the answer contains the gold answer, or the gold answer contains it (two-way substring exact match)."""
    said, gold = (episode.answer or "").strip().lower(), str(task.data["answer"])
    return float(bool(said) and (gold in said or said in gold))


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with the colour."""
    yield Say(f"<answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with a colour of the text: shows the form."""
    told = [colour for colour in COLOURS if colour in task.instruction[0]["content"]]
    yield Say(f"<answer>{rng.choice(told)}</answer>")
