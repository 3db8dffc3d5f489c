"""Dr. MAS: a solver and a verifier, which are one policy, share an outcome."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentrl import Agent, Message, Say, Task

VERIFY = "Check the answer. Reply approve if it is right, else reject."


class Verified(Agent):
    """A solver answers, and a verifier approves the answer or has the solver try again.

    The solver sees the question and its rejected answers. `info["tries"]` holds the answers.

    Args:
        rounds: answers at most; the last one counts, approved or not.
    """

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds

    async def run(self, session: Any) -> None:
        """Answers until an answer is approved."""
        tries: list[str] = []
        for number in range(self.rounds):
            if tries:
                session.rewrite([*session.opening, _user(f"Rejected: {', '.join(tries)}. Try again.")])
            reply = await session.generate(agent="solver")
            tries.append((reply.text if reply.answer is None else reply.answer).strip())
            if "approve" in await self._verdict(session, number, tries[-1]):
                break
        session.info["tries"] = tries
        session.finish("answer", tries[-1])

    async def _verdict(self, session: Any, number: int, answer: str) -> str:
        """Returns what the verifier says of an answer."""
        asked = str(session.task.instruction[-1]["content"])
        messages = [{"role": "system", "content": VERIFY}, _user(f"{asked} Answer: {answer}")]
        verifier = session.context(f"verifier {number}", messages, role="verifier", tools=[])
        return str((await verifier.generate()).text)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def oracle(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Answers rightly, and approves."""
    yield Say("approve" if context != "main" else f"<answer>{task.data['answer']}</answer>")


def some(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Answers rightly or one too high, and approves every other answer."""
    while context == "main":
        yield Say(f"<answer>{int(task.data['answer']) + (rng.random() < 0.5)}</answer>")
    yield Say(rng.choice(["approve", "reject"]))
