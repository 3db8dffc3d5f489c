"""A critic and a frozen actor: the actor answers, the critic judges, the actor answers again."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl import Agent, Episode, Message, Say, Task


class Critic(Agent):
    """The actor's answer goes to the policy, and the policy's critique to the actor. Each answer has a context.

    `info` holds `first`, the actor's answer before the critique, and `refined`, those after it.

    Args:
        refinements: number of answers after the critique.
    """

    def __init__(self, refinements: int = 1) -> None:
        self.refinements = refinements

    async def run(self, session: Any) -> None:
        """One answer, one critique, and the refined answers."""
        asked = [*session.task.instruction]
        first = (await session.context("actor", asked, policy="actor").generate()).text
        session.say(f"The answer was: {first}")
        critique = (await session.generate()).text
        heard = [{"role": "assistant", "content": first}, {"role": "user", "content": critique}]
        refined = []
        for k in range(self.refinements):
            refiner = session.context(f"refined {k + 1}", [*asked, *heard], role="actor", policy="actor")
            refined.append((await refiner.generate()).text)
        session.info.update(first=first, refined=refined)
        session.finish("answer", refined[-1])


def verdict(episode: Episode) -> bool | None:
    """What the critique says of the answer: it is right, or wrong; None: neither."""
    text = " ".join(turn.text for turn in episode.own_turns)
    found = re.findall(r"<judge>(right|wrong)</judge>", text)
    return None if not found else found[-1] == "right"


def discriminability(task: Task, episode: Episode) -> float:
    """1 if the critic's verdict on the first answer is what the gold answer says of it."""
    if "first" not in episode.info:
        return 0.0
    return float(verdict(episode) == _is_right(task, episode.info["first"]))


def refined(task: Task, episode: Episode) -> float:
    """Share of the answers after the critique that are right."""
    answers = episode.info.get("refined", [])
    return sum(_is_right(task, answer) for answer in answers) / max(len(answers), 1)


def feedback(task: Task, episode: Episode) -> float:
    """The same where the first answer was wrong and the critic said so, else 0."""
    found = verdict(episode) is False and not _is_right(task, episode.info["first"])
    return refined(task, episode) if found else 0.0


def _is_right(task: Task, answer: str) -> bool:
    return re.findall(r"\d+", answer)[-1:] == [task.data["answer"]]


# --- scripts --------------------------------------------------------------------------------------------------------


def critic(task: Task, rng: random.Random, messages: Sequence[Message]) -> Iterator[Say]:
    """Judges rightly, and says the sum."""
    right = _is_right(task, str(messages[-1]["content"]))
    yield _critique(right, int(task.data["answer"]))


def some(task: Task, rng: random.Random, messages: Sequence[Message]) -> Iterator[Say]:
    """Judges at random, and says a sum that is right or one too high."""
    yield _critique(rng.random() < 0.5, int(task.data["answer"]) + rng.randint(0, 1))


def actor(task: Task, rng: random.Random, messages: Sequence[Message]) -> Iterator[Say]:
    """Is right half of the time; after a critique that says it was wrong, answers what the critique says."""
    heard = str(messages[-1]["content"])
    if "wrong" in heard:
        said = (re.findall(r"\d+", heard) or ["0"])[-1]
    elif len(messages) > 1:
        said = str(messages[-2]["content"])
    else:
        said = str(int(task.data["answer"]) + (rng.random() < 0.5))
    yield Say(said)


def _critique(right: bool, total: int) -> Say:
    return Say(f"<judge>{'right' if right else 'wrong'}</judge>It is {total}.")
