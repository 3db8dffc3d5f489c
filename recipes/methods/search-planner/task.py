"""AI-SearchPlanner: a planner that searches, a frozen model that answers, and the gain of the one for the other."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from typing import Annotated, Any

from pydantic import Field

from agentrl.engines.scripted import Say
from agentrl.rewards import Scored
from agentrl.rewards.functions.verifiers import gold, word_f1
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.session import Session
from agentrl.types.episode import Episode
from agentrl.types.task import Message, Task

WITHOUT = "answer_without_search"
"""The key of the episode's info with what the frozen model answers without the planner."""
ASKED = "Answer the question with as few words as possible, and nothing else.\n\n{found}Question: {question}"


class PlannerAgent(Agent):
    """Has the policy plan searches until it makes no call, and a frozen model answer from what they show.

    Args:
        searches: maximum turns of the planner.
        policy: name of the frozen model under `policies`.
    """

    def __init__(self, searches: Annotated[int, Field(gt=0)] = 6, policy: str = "answerer") -> None:
        self.searches, self.policy = searches, policy

    async def run(self, session: Session) -> None:
        """Asks the frozen model without search, plans, and asks it again with all results."""
        session.info[WITHOUT] = await self._answer(session, "before", [])
        found: list[str] = []
        for _ in range(self.searches):
            reply = await session.generate()
            if not reply.calls and not reply.errors:
                break
            await session.run_tools(reply)
            found += [call.result for call in session.turns[-1].calls if call.outcome == "ok"]
        session.finish("answer", await self._answer(session, "after", found))

    async def _answer(self, session: Session, name: str, found: list[str]) -> str:
        shown = "What a search found:\n" + "\n\n".join(found) + "\n\n" if found else ""
        asked = ASKED.format(found=shown, question=session.task.instruction[-1]["content"])
        other = session.context(f"answer-{name}", [{"role": "user", "content": asked}], policy=self.policy)
        return (await other.generate()).text.strip()


def gain(task: Task, episode: Episode, info: Mapping[str, Any]) -> Scored:
    """F1 of the answer, less that of the frozen model without search."""
    after, before = (
        max(word_f1(said, reference) for reference in gold(task, "answer"))
        for said in (episode.answer or "", str(info.get(WITHOUT, "")))
    )
    return Scored(after - before, f"{before:g} without search, {after:g} with it")


def cost(episode: Episode, turns: int = 6, queries: int = 6) -> float:
    """The mean of the planner's turns and of its queries, each as a share of its most."""
    own = episode.own_turns
    asked = sum(len(turn.calls) for turn in own)
    return (min(len(own) / turns, 1.0) + min(asked / queries, 1.0)) / 2


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Makes the searches that the question needs."""
    for hop in task.data["hops"]:
        yield Say(calls=[("search", {"query": hop["query"]})])
    yield Say("done")
