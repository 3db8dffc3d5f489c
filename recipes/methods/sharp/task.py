"""SHARP: a planner and a worker, and what the episode comes to with either masked."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from agentrl import Agent, Say, Task
from agentrl.types.episode import Turn

PLAN = "Say what the worker shall do."
WORK = "Do it, and give the result."
FINISH = "The worker's result: {result}\nGive the answer."
MASKED = "(none)"


class PlanWork(Agent):
    """A planner asks a worker, and answers with its result. Evaluations are played without masks.

    Args:
        masks: the planner also answers without the worker's result, and the worker without a plan; neither trains.
    """

    def __init__(self, masks: bool = True) -> None:
        self.masks = masks

    async def run(self, session: Any) -> None:
        """Plays the episode: the planner in the main context, the worker in one of its own."""
        task = str(session.task.instruction[-1]["content"])
        masked = self.masks and session.split in ("train", "rollout")
        without = {"planner": answer_in(await session.aside(WORK, "no planner", False))} if masked else {}
        session.say(PLAN)
        await session.generate(agent="planner")
        plan = session.turns[-1].text.strip()
        worker = session.context("worker", [{"role": "user", "content": f"{task}\n{plan}\n{WORK}"}], tools=[])
        await worker.generate()
        if masked:
            asked = FINISH.format(result=MASKED)
            without["worker"] = answer_in(await session.aside(asked, "no worker", False))
            session.info["without"] = without
        session.say(FINISH.format(result=answer_in(worker.turns[-1].text)))
        reply = await session.generate(agent="planner")
        session.finish("answer", reply.text.strip() if reply.answer is None else reply.answer)


def answer_in(text: str) -> str:
    """Returns the answer that a reply tags, else the reply."""
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return str(found[-1] if found else text).strip()


def readable(turn: Turn) -> float:
    """1 for a whole reply with an answer, or a plan without one, else 0."""
    planned = turn.agent == "planner" and "<" not in turn.text
    return float(turn.finish == "stop" and (planned or "</answer>" in turn.text))


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Plans the sum, works it out, and answers with it."""
    yield from _said(task, context, 0, 0)


def guesser(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """The worker and the last answer are right, or one too high."""
    yield from _said(task, context, rng.randint(0, 1), rng.randint(0, 1))


def _said(task: Task, context: str, *off: int) -> Iterator[Say]:
    total, numbers = int(task.data["answer"]), task.data["numbers"]
    if context != "worker":
        yield Say("Add " + " and ".join(map(str, numbers)) + ".")
    yield Say(f"<answer>{total + off[context == 'worker']}</answer>")
