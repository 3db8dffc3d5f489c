"""AgentFlow: a planner that trains, an executor, a verifier and a generator, and the memory that they share."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl import Agent, Message, Say, Task

EXECUTOR = "You carry out one step. Call the tool that the plan names, for its goal."
VERIFIER = "You check the memory of a solver. Reply STOP if it answers the question, else CONTINUE."
GENERATOR = "You write the answer. Reply with the answer alone, from the memory."


class Flow(Agent):
    """The planner is the policy. It sees the question and the memory, not its earlier replies.

    A step: the planner names a tool and a goal, the executor calls the tool, the memory grows by plan and result, and
    the verifier says whether it is enough. Then the generator answers from the memory. `info` holds the memory.

    Args:
        steps: maximum number of steps.
    """

    def __init__(self, steps: int = 4) -> None:
        self.steps = steps

    async def run(self, session: Any) -> None:
        """Takes steps until the verifier stops them, then has the answer written."""
        memory: list[str] = []
        for number in range(self.steps):
            if memory:
                session.rewrite([*session.opening, _user("\n".join(memory))])
            plan = (await session.generate(agent="planner")).text
            memory.append(f"{plan} -> {await self._executed(session, number, plan)}")
            if "STOP" in await self._asked(session, "verifier", number, VERIFIER, memory):
                break
        answer = await self._asked(session, "generator", 0, GENERATOR, memory)
        session.info["memory"] = memory
        session.finish("answer", answer.strip())

    async def _executed(self, session: Any, number: int, plan: str) -> str:
        """Returns what the tool says to the executor's call, or the executor's reply."""
        messages = [{"role": "system", "content": EXECUTOR}, _user(plan)]
        tools = [*session.methods]
        executor = session.context(f"executor {number}", messages, role="executor", policy="module", tools=tools)
        reply = await executor.generate()
        if not reply.calls:
            return str(reply.text)
        return " ".join(str(result.text) for result in await executor.run_tools(reply))

    async def _asked(self, session: Any, role: str, number: int, system: str, memory: Sequence[str]) -> str:
        """Returns what a module says of the question and the memory."""
        asked = str(session.task.instruction[-1]["content"])
        messages = [{"role": "system", "content": system}, _user("\n".join([asked, *memory]))]
        module = session.context(f"{role} {number}", messages, role=role, policy="module")
        return str((await module.generate()).text)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


# --- scripts --------------------------------------------------------------------------------------------------------


def planner(task: Task, rng: random.Random) -> Iterator[Say]:
    """Adds one number after the other."""
    yield from _plans(task.data["numbers"])


def some(task: Task, rng: random.Random) -> Iterator[Say]:
    """The same, but each number may be one too high."""
    first, *others = task.data["numbers"]
    yield from _plans([first, *(number + (rng.random() < 0.3) for number in others)])


def _plans(numbers: Sequence[int]) -> Iterator[Say]:
    total, *others = numbers
    for number in others:
        yield Say(f"calculate: {total} + {number}")
        total += number


def module(task: Task, rng: random.Random, messages: Sequence[Message]) -> Iterator[Say]:
    """Calls the calculator for the goal; stops when memory has a result for each plus; answers with the last one."""
    told, heard = str(messages[0]["content"]), str(messages[-1]["content"])
    if told == EXECUTOR:
        goal = re.search(r"\d+ \+ \d+", heard)
        yield Say("there is no goal") if goal is None else Say(calls=[("calculate", {"expression": goal[0]})])
    elif told == VERIFIER:
        yield Say("STOP" if heard.count("->") >= len(task.data["numbers"]) - 1 else "CONTINUE")
    else:
        yield Say((re.findall(r"\d+", heard) or ["0"])[-1])
