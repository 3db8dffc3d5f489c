"""CCPO: a thinker and a solver, and what the solver answers without the thinker."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from agentrl import Agent, Say, Task

THINK = "Say how to solve it, without the answer."
SOLVE = "Give the answer."


class ThinkSolve(Agent):
    """A thinker says how to solve a task, and the solver answers. Evaluations are played without the counterfactual.

    Args:
        counterfactual: the solver also answers without the thought, which does not train.
    """

    def __init__(self, counterfactual: bool = True) -> None:
        self.counterfactual = counterfactual

    async def run(self, session: Any) -> None:
        """Plays the episode: the thinker in a context of its own, the solver in the main one."""
        task = str(session.task.instruction[-1]["content"])
        thinker = session.context("thinker", [{"role": "user", "content": f"{task}\n{THINK}"}], tools=[])
        await thinker.generate()
        thought = thinker.turns[-1].text.strip()
        if self.counterfactual and session.split in ("train", "rollout"):
            session.info["without"] = {"thinker": answer_in(await session.aside(SOLVE, "alone", False))}
        session.say(f"A thought: {thought}\n{SOLVE}")
        reply = await session.generate(agent="solver")
        session.finish("answer", reply.text.strip() if reply.answer is None else reply.answer)


def answer_in(text: str) -> str:
    """Returns the answer that a reply tags, else the reply."""
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return str(found[-1] if found else text).strip()


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Thinks of the partial sums, and answers with the sum."""
    yield _said(task, context, 0)


def guesser(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Each role is right, or one too high."""
    yield _said(task, context, rng.randint(0, 1))


def _said(task: Task, context: str, off: int) -> Say:
    total = int(task.data["answer"]) + off
    thought = " + ".join(map(str, task.data["numbers"])) + f" = {total}."
    return Say(thought if context == "thinker" else f"<answer>{total}</answer>")
