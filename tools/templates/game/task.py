"""Text game: the model guesses a number, and each answer is higher or lower."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator

from agentrl import Environment, Episode, Message, Observation, Reply, Say, Task

LOW, HIGH = 10, 40


def games(n: int = 64, split: str = "train") -> Iterator[Task]:
    """Yields tasks; each `split` has other numbers."""
    for k in range(n):
        number = random.Random(f"{split} {k}").randint(LOW, HIGH)
        yield Task.of(f"{split}{k}", f"Guess my number, {LOW} to {HIGH}. Say the number alone.", number=number)


class Guess(Environment):
    """Guessing game: `open` resets, `respond` steps."""

    def open(self, task: Task, sandbox: object) -> None:
        self.number, self.low, self.high = task.data["number"], LOW, HIGH

    def state_key(self) -> list[int]:
        return [self.low, self.high]

    def respond(self, reply: Reply) -> str | Observation:
        text = reply.text.strip()
        if not text.isdigit():
            return "Say a number alone."
        guess = int(text)
        if guess == self.number:
            return Observation("Right.", done=True, answer=text)
        if guess < self.number:
            self.low = max(self.low, guess + 1)
            return "Higher."
        self.high = min(self.high, guess - 1)
        return "Lower."


def won(task: Task, episode: Episode) -> float:
    """Returns 1 if the number was guessed."""
    return float(episode.answer == str(task.data["number"]))


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Bisects the range: at most five guesses."""
    low, high = LOW, HIGH
    while True:
        middle = (low + high) // 2
        said = yield Say(str(middle))
        low, high = (middle + 1, high) if "Higher" in said[-1]["content"] else (low, middle - 1)
