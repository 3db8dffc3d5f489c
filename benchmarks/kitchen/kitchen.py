"""A kitchen in words: dishes are made of steps in an order, and some steps at the wrong time spoil them."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from typing import Any

from agentrl import Environment, Message, Observation, Say, Task
from agentrl.types.episode import Episode

DISHES = {
    "tea": ["fill", "boil", "pour"],
    "coffee": ["grind", "boil", "pour"],
    "soup": ["chop", "fill", "boil"],
    "salad": ["wash", "chop", "pour"],
    "rice": ["wash", "fill", "boil"],
    "pesto": ["wash", "grind", "pour"],
    "stew": ["chop", "boil", "fill"],
    "cocoa": ["fill", "grind", "boil"],
}
STEPS = ["fill", "boil", "pour", "grind", "chop", "wash"]
SPOILS = ("pour", "boil")


def dishes() -> Iterator[Task]:
    """One task for each dish."""
    for name, steps in DISHES.items():
        yield Task.of(name, f"Make {name}. Steps: {' '.join(STEPS)}. Then serve.", steps=steps, goal=steps[-1])


class Kitchen(Environment):
    """Says what a step did. `serve` ends the episode."""

    async def open(self, task: Task, sandbox: Any) -> None:
        self.steps, self.done, self.spoilt = task.data["steps"], 0, False

    async def respond(self, reply: Any) -> Observation:
        word = reply.text.strip().lower()
        if word == "serve":
            good = self.done == len(self.steps) and not self.spoilt
            return Observation("Delicious." if good else "Not that.", done=True, answer=str(good))
        if word not in STEPS:
            return Observation("What?")
        if self.done < len(self.steps) and word == self.steps[self.done]:
            self.done += 1
            return Observation(f"Good. {self.done} done.")
        self.spoilt = self.spoilt or word in SPOILS
        return Observation("Spoilt." if self.spoilt else "Nothing changes.")

    def state_key(self) -> str:
        return f"{self.done} {self.spoilt}"

    async def save(self) -> list[Any]:
        return [self.done, self.spoilt]

    async def restore(self, state: list[Any]) -> None:
        self.done, self.spoilt = state


def served(task: Task, episode: Episode) -> float:
    """1 if the dish that was served is right."""
    return float(episode.answer == "True")


def cook(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Six steps in ten are right; serves when it is done."""
    steps, done = task.data["steps"], 0
    while True:
        right = steps[done] if done < len(steps) else "serve"
        word = right if rng.random() < 0.6 else rng.choice([*STEPS, "serve"])
        yield Say(word)
        done += word == right
