"""A critic judges a solver's answer, the solver tries again with the critique, and what comes of it pays the critic."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from agentrl import Agent, Message, Say, Session, Task
from agentrl.rewards.functions.answers.comparers import among
from agentrl.rewards.functions.verifiers import gold
from agentrl.types.parts.content import text_of

GUESSES = (1, 2, 3, 4, 5, 7, 9, 16)


class Critic(Agent):
    """The policy criticises the answer of the policy `solver`, which then solves the problem again, several times.

    Args:
        refinements: how often the solver solves the problem with the critique.
    """

    def __init__(self, refinements: Annotated[int, Field(gt=0)] = 2) -> None:
        self.refinements = refinements

    async def run(self, session: Session) -> None:
        """Runs the solver, the critic, and the solver's refinements."""
        question = "\n".join(text_of(message["content"]) for message in session.task.instruction)
        first = await _solved(session, "solver", question)
        session.info["solution"] = first
        session.say(
            f"Somebody answered: {first}\nSay what is wrong, and how to go on. End with <answer>right</answer> or "
            "<answer>wrong</answer>."
        )
        critique = await session.generate()
        asked = f"{question}\nYou answered: {first}\nA critic says: {critique.text}\nSolve it again."
        session.info["refined"] = [
            await _solved(session, f"refiner-{number + 1}", asked) for number in range(self.refinements)
        ]
        session.finish("answer", critique.answer)


async def _solved(session: Session, name: str, text: str) -> str:
    solver = session.context(name, [{"role": "user", "content": text}], policy="solver", role="solver", tools=[])
    reply = await solver.generate()
    return (reply.text if reply.answer is None else reply.answer).strip()


def judged(task: Task, info: Mapping[str, Any], episode: Any) -> float:
    """1 if the critic's verdict on the first answer is right, else 0."""
    right = among(info.get("solution", ""), gold(task, "answer"), "numeric")
    return float(episode.answer == ("right" if right else "wrong"))


def refined(task: Task, info: Mapping[str, Any]) -> float:
    """Share of the refinements of a wrong answer that are right; 0 if the first answer was right."""
    references, after = gold(task, "answer"), info.get("refined") or []
    if not after or among(info["solution"], references, "numeric"):
        return 0.0
    return sum(among(each, references, "numeric") for each in after) / len(after)


# --- scripts --------------------------------------------------------------------------------------------------------


def critic(task: Task, rng: random.Random) -> Iterator[Say]:
    """Judges at random, and names a frequent number."""
    yield Say(f"Try {rng.choice(GUESSES)}. <answer>{rng.choice(['right', 'wrong'])}</answer>")


def solver(task: Task, rng: random.Random, messages: list[Message]) -> Iterator[Say]:
    """Is right one time in four; with a critique that names a number, takes that one."""
    named = re.findall(r"Try (\d+)", str(messages[-1]["content"]))
    answer = named[-1] if named else task.data["answer"] if rng.random() < 0.25 else rng.choice(GUESSES)
    yield Say(f"<answer>{answer}</answer>")
