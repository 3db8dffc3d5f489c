"""Advice on trips: people with wishes that the agent does not see, imagined by the policy or simulated."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl import Agent, Episode, Message, Say, Task
from agentrl.estimators.estimator import estimator
from agentrl.estimators.table import CreditTable

PLACES, MOODS = ("sea", "hills", "city"), ("calm", "wild")
TRIPS = dict(zip(itertools.product(PLACES, MOODS), ("swim", "surf", "walk", "climb", "paint", "dance"), strict=True))
QUESTIONS = {"place": "sea, hills or city?", "mood": "calm or wild?"}


def people(n: int, human: str = "human") -> Iterator[Task]:
    """People with a place and a mood in mind, all of whom say the same.

    Args:
        human: the policy that plays the person: `human`, a script; `policy`, the policy, which learns it; `self`, the
            policy, which does not.
    """
    for k, (place, mood) in enumerate(random.Random(0).choices([*TRIPS], k=n)):
        yield Task.of(f"{human}/{k}:{place}-{mood}", "A trip?", place=place, mood=mood, human=human)


class Advice(Agent):
    """Asks a person, who sees the own wishes, until a trip is recommended or the turns are over.

    Args:
        turns: utterances of the agent at most.
    """

    def __init__(self, turns: int = 3) -> None:
        self.turns = turns

    async def run(self, session: Any) -> None:
        """Talks to the recommendation, which is the answer."""
        own = session.task.data
        told = {"role": "system", "content": f"You like: {own['place']}, {own['mood']}."}
        person = session.context("human", [told], policy=own["human"], tools=[])
        for left in range(self.turns, 0, -1):
            said = (await session.generate()).text
            if said.startswith("Try") or left == 1:
                return session.finish("answer", said)  # type: ignore[no-any-return]
            person.say(said)
            session.say((await person.generate()).text)


def fits(task: Task, episode: Episode) -> float:
    """1 if the recommended trip is that of the wishes, else 0."""
    return float(episode.answer == f"Try {TRIPS[task.data['place'], task.data['mood']]}.")


@estimator(reads=["outcome", "turns"])
def nothing(table: CreditTable) -> NDArray[np.float64]:
    """No advantage: the dialogues are only stored."""
    return np.zeros(table.n_turns)


# --- scripts ----------------------------------------------------------------------------------------------------------


def human(task: Task, rng: random.Random, messages: Sequence[Message]) -> Iterator[Say]:
    """A person who answers what is asked."""
    while True:
        asked = str(messages[-1]["content"])
        yield Say(next((task.data[wish] for wish, question in QUESTIONS.items() if asked == question), "Hm."))


def advise(task: Task, rng: random.Random, wishes: Sequence[str]) -> Iterator[Say]:
    """Asks for some wishes, and recommends a trip of those that are known."""
    for wish in wishes:
        yield Say(QUESTIONS[wish])
    fit = [pair for pair in TRIPS if all(task.data[wish] in pair for wish in wishes)]
    yield Say(f"Try {TRIPS[rng.choice(fit)]}.")


def some(task: Task, rng: random.Random, messages: Sequence[Message], context: str) -> Iterator[Say]:
    """Plays both sides. The agent asks for each wish two times in three."""
    if context == "human":
        yield from human(task, rng, messages)
    yield from advise(task, rng, [wish for wish in QUESTIONS if rng.random() < 2 / 3])


def oracle(task: Task, rng: random.Random, messages: Sequence[Message], context: str) -> Iterator[Say]:
    """Plays both sides. The agent asks for both wishes."""
    yield from human(task, rng, messages) if context == "human" else advise(task, rng, [*QUESTIONS])
