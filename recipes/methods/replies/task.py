"""Two small tasks of one reply, on which methods of reasoning and of writing act: sums, and notes to a person."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from agentrl import Say, Task
from agentrl.types.episode import Episode

NAMES = ["Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana"]
EVENTS = [
    "the boat comes",
    "the shop opens",
    "the class ends",
    "the train leaves",
    "the play begins",
    "the bank closes",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]


def sums(n: int = 512, seed: int = 0, held_out: bool = False, terms: Sequence[int] = (2, 3, 4)) -> Iterator[Task]:
    """`n` sums of numbers below ten, with two terms, three, four in turn.

    Args:
        held_out: the sums for evaluation, which have other seeds.
        terms: numbers of terms.
    """
    for k in range(n):
        rng = random.Random(f"{seed} {held_out} {k}")
        numbers = [rng.randint(1, 9) for _ in range(terms[k % len(terms)])]
        asked = " + ".join(map(str, numbers))
        yield Task.of(f"sum/{held_out}/{k}", f"What is {asked}?", answer=str(sum(numbers)), numbers=numbers)


def notes(n: int = 288, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """`n` notes to write, each with criteria, the facts that it must tell, and a note that does."""
    asked = [(name, event, day) for name in NAMES for event in EVENTS for day in DAYS]
    random.Random(seed).shuffle(asked)
    for name, event, day in asked[-32:] if held_out else asked[: min(n, len(asked) - 32)]:
        yield Task.of(
            f"note/{name}/{event}/{day}".replace(" ", "-"),
            f"Write to {name}: {event} on {day}.",
            reference=f"Dear {name}, {event} on {day}. Best wishes",
            rubric=[
                f"The note says that {event}.",
                f"The note names the day, {day}.",
                f"The note greets {name} by name.",
                "The note ends politely.",
            ],
            facts=[name, event, day],
        )


# --- scripts --------------------------------------------------------------------------------------------------------


def adder(task: Task, rng: random.Random) -> Iterator[Say]:
    """Adds step by step in a thought, and answers with the sum."""
    yield Say(f"{_thought(task.data['numbers'])}<answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Thinks or does not, is right or one too high, and says how sure it is, which tells nothing.

    Right three times in four with a thought, one time in two without. Shows the forms of a reply; when a thought pays,
    how long it must be, and how sure one may be has to be found out.
    """
    thinks = rng.random() < 0.5
    right = rng.random() < (0.75 if thinks else 0.5)
    said = int(task.data["answer"]) + (not right)
    sure = rng.choice([20, 50, 90])
    thought = _thought(task.data["numbers"], rng.randint(0, 1)) if thinks else ""
    yield Say(f"{thought}<answer>{said}</answer><confidence>{sure}%</confidence>")


def _thought(numbers: Sequence[int], repeats: int = 0) -> str:
    """The partial sums, once or more often."""
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{total} + {number} = {total + number}.")
        total += number
    return f"<think>{' '.join(steps * (1 + repeats))}</think>"


def writer(task: Task, rng: random.Random) -> Iterator[Say]:
    """Writes the note."""
    yield Say(f"<answer>{task.data['reference']}</answer>")


def scribbler(task: Task, rng: random.Random) -> Iterator[Say]:
    """Writes a note in which each of its parts may be absent, or the day be another; thinks before it, or does not."""
    name, event, day = task.data["facts"]
    parts = [
        f"Dear {name}, " if rng.random() < 0.7 else "Hi, ",
        f"{event} on {day if rng.random() < 0.7 else rng.choice(DAYS)}." if rng.random() < 0.8 else "come.",
        rng.choice([" Best wishes", " Bye", ""]),
        " Bye" * rng.randint(0, 2),
    ]
    thought = f"<think>{name}, {day}</think>" if rng.random() < 0.5 else ""
    yield Say(f"{thought}<answer>{''.join(parts)}</answer>")


# --- rewards --------------------------------------------------------------------------------------------------------


def tells(task: Task, episode: Episode) -> float:
    """Share of the facts that the note names."""
    note = episode.answer or ""
    return sum(fact in note for fact in task.data["facts"]) / len(task.data["facts"])


def in_range(episode: Episode, *, least: int, most: int) -> float:
    """1 for an answer of `least` to `most` words, less in proportion to what is missing or too much, not below 0."""
    words = len((episode.answer or "").split())
    if words < least:
        return words / least
    return max(0.0, 1 - max(0, words - most) / most)


def thought_first(episode: Episode) -> float:
    """1 if the reply is one thought and then one answer, else 0."""
    text = episode.own_turns[-1].text if episode.own_turns else ""
    return float(re.fullmatch(r"\s*<think>.+?</think>\s*<answer>.+?</answer>.*", text, re.DOTALL) is not None)
