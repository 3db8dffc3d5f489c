"""English phrases with their German: a number, a colour, a noun, and where it is."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl import Say, Task

NUMBERS = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
COLOURS = {"red": "rote", "green": "grüne", "old": "alte", "new": "neue"}
NOUNS = {"boats": "Boote", "houses": "Häuser", "birds": "Vögel", "trees": "Bäume", "books": "Bücher", "dogs": "Hunde"}
PLACES = {"here": "hier", "there": "dort", "today": "heute"}
TABLES = [NUMBERS, COLOURS, NOUNS, PLACES]


def phrases(n: int = 256, held_out: bool = False) -> Iterator[Task]:
    """The first `n` phrases; the last 64 are for evaluation."""
    every = [[a, b, c, d] for a in NUMBERS for b in COLOURS for c in NOUNS for d in PLACES]
    random.Random(0).shuffle(every)
    for words in (every[-64:] if held_out else every[:-64])[:n]:
        english, german = " ".join(words), " ".join(table[word] for table, word in zip(TABLES, words, strict=True))
        yield Task.of(english.replace(" ", "-"), f"Translate: {english}.", answer=german)


def translator(task: Task, rng: random.Random) -> Iterator[Say]:
    """Thinks, and translates."""
    yield Say(f"<think>word by word</think><answer>{task.data['answer']}</answer>")


def learner(task: Task, rng: random.Random) -> Iterator[Say]:
    """Takes another word of the same kind one time in four, and thinks three times in four."""
    words = [
        word if rng.random() < 0.75 else rng.choice([*table.values()])
        for word, table in zip(task.data["answer"].split(), TABLES, strict=True)
    ]
    thought = "<think>word by word</think>" if rng.random() < 0.75 else ""
    yield Say(f"{thought}<answer>{' '.join(words)}</answer>")
