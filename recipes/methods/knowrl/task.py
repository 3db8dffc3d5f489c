"""Questions about the markets of towns, with what is known of each town."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl import Say, Task
from agentrl.types.episode import Episode

TOWNS = ["Ulm", "Aix", "Ely", "Bath", "Cork", "Brno", "Lyon", "Gent", "Pisa", "Riga", "Oslo", "Bonn", "York", "Nice"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
GOODS = ["fish", "bread", "wool", "cheese", "wine"]
REFUSAL = "I do not know"


def questions(n: int = 96, held_out: bool = False) -> Iterator[Task]:
    """When the markets of towns are, year by year. Each task has the document about its town in `knowledge`."""
    for k in range(n):
        rng = random.Random(f"{held_out} {k}")
        town, year = TOWNS[k % len(TOWNS)], 1700 + k // len(TOWNS) + 50 * held_out
        day, goods = rng.choice(DAYS), rng.choice(GOODS)
        yield Task.of(
            f"market/{town}/{year}",
            f"On what day was the market of {town} in {year}?",
            answer=day,
            town=town,
            knowledge=[f"The market of {town} was on {day}. It sold {goods}."],
        )


def verdict(task: Task, episode: Episode) -> float:
    """2 for the right answer, 1 for a refusal, -1 for a wrong answer or none."""
    answer = (episode.answer or "").strip()
    return 2.0 if answer == task.data["answer"] else 1.0 if answer == REFUSAL else -1.0


def known(group: list[Episode], *, verdict: str = "verdict", facts: str) -> list[float | None]:
    """The verdict; a wrong answer gets -1 + the share of supported facts in its thought.

    Args:
        verdict, facts: the components with the two.
    """
    values = [(each.components[verdict], each.components[facts]) for each in group]
    return [None if said is None or held is None else said + held * (said == -1.0) for said, held in values]


# --- scripts --------------------------------------------------------------------------------------------------------


def knower(task: Task, rng: random.Random) -> Iterator[Say]:
    """Recalls what is known, and answers."""
    yield Say(f"<think>{task.data['knowledge'][0]}</think><answer>{task.data['answer']}</answer>")


def rumour(task: Task, rng: random.Random) -> Iterator[Say]:
    """Recalls facts that may be false, and answers with one of these days, or refuses."""
    day = task.data["answer"] if rng.random() < 0.5 else rng.choice(DAYS)
    thought = f"The market of {task.data['town']} was on {day}. It sold {rng.choice(GOODS)}."
    answer = rng.choice([day, day, rng.choice(DAYS), REFUSAL])
    yield Say(f"<think>{thought}</think><answer>{answer}</answer>")
