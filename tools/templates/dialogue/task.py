"""Dialogues: a customer wants a table and says what is asked, no more; the policy asks, books and confirms."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator

from agentrl import Message, Say, Task, Tool, ToolError, tool

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PATIENCE = 6


def wishes(n: int = 64, split: str = "train") -> Iterator[Task]:
    """Yields tasks. The instruction is the customer's: the policy does not see it. `test` has other wishes."""
    every = list(itertools.product(DAYS, range(2, 21)))
    random.Random(0).shuffle(every)
    half = len(every) // 2
    for k, (day, people) in enumerate((every[:half] if split == "train" else every[half:])[:n]):
        yield Task.of(f"{split}{k}", f"You want a table for {people} people on {day}.", day=day, people=people)


class Book(Tool):
    """The book of a restaurant."""

    def open(self, task: Task, sandbox: object) -> None:
        self.bookings: list[tuple[str, int]] = []

    def state_key(self) -> list[tuple[str, int]]:
        return self.bookings

    @tool
    def book(self, day: str, people: int) -> str:
        """Book a table.

        Args:
            day: day of the week.
            people: how many come.
        """
        if day not in DAYS:
            raise ToolError(f"there is no day {day!r}")
        self.bookings.append((day, people))
        return "booked"


def booked(task: Task, tools: list[Book]) -> float:
    """Returns 1 if the book holds what the customer wants, and nothing else."""
    return float(tools[0].bookings == [(task.data["day"], task.data["people"])])


def customer(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Plays the customer: it hears the policy's replies, and `###STOP###` ends the dialogue."""
    heard = yield Say("A table, please.")
    for _ in range(PATIENCE):
        question = str(heard[-1]["content"]).lower()
        if "booked" in question:
            break
        if "day" in question:
            heard = yield Say(f"On {task.data['day']}.")
        elif "many" in question:
            heard = yield Say(f"We are {task.data['people']}.")
        else:
            heard = yield Say("What do you want to know?")
    yield Say("Thank you. ###STOP###")


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Asks both questions, books and confirms."""
    yield Say("Which day?")
    yield Say("How many people?")
    yield Say(calls=[("book", {"day": task.data["day"], "people": task.data["people"]})])
    yield Say("It is booked.")
