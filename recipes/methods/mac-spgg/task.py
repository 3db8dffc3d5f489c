"""MAC-SPGG: agents play a sequential public-goods game, and their payoffs are their rewards."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from agentrl import Agent, Say, Task

EARLIER = "{task}\nContributions of the agents before you:\n{said}"


class PublicGood(Agent):
    """The agents answer in sequence. The last answer is that of the episode, and each agent's payoff is its outcome.

    With `factor / n < cost` the standard game (`bonus: 0`) pays an agent more if it does not contribute. With
    `factor / n + bonus > cost` contributing pays whatever the others do, so that the only subgame-perfect equilibrium
    is that all contribute.

    Args:
        agents: policies in their order: `policy`, the main one, and names under `policies`.
        observes: contributions that an agent sees: those of `all` agents before it, or of the `last` one.
        factor: the sum of contributions is multiplied by it, and shared by all.
        cost: of a full effort.
        bonus: for an agent's own contribution.
        whole: characters of a full effort.
    """

    seats = True

    def __init__(
        self,
        agents: Sequence[str] = ("policy", "second"),
        observes: Literal["all", "last"] = "all",
        factor: float = 1.5,
        cost: float = 1.0,
        bonus: float = 0.5,
        whole: int = 64,
    ) -> None:
        self.agents, self.observes, self.whole = list(agents), observes, whole
        self.factor, self.cost, self.bonus = factor, cost, bonus

    async def run(self, session: Any) -> None:
        """Plays the game."""
        task = str(session.task.instruction[-1]["content"])
        turns, said, answers = [], list[str](), list[str | None]()
        for number, policy in enumerate(self.agents):
            seen = said if self.observes == "all" else said[-1:]
            asked = EARLIER.format(task=task, said="\n".join(seen)) if seen else task
            name = f"agent {number}"
            turn = session.context(name, [{"role": "user", "content": asked}], role=name, policy=policy, tools=[])
            reply = await turn.generate()
            turns.append(turn)
            said.append(turn.turns[-1].text.strip())
            answers.append(reply.answer)
        contributions = [float((answer or "").strip() == session.task.data["answer"]) for answer in answers]
        efforts = [min(1.0, len(text) / self.whole) for text in said]
        for turn, payoff in zip(turns, self.payoffs(contributions, efforts), strict=True):
            turn.score(payoff)
        session.info["contributions"], session.info["efforts"] = contributions, efforts
        session.finish("answer", answers[-1] or "")

    def payoffs(self, contributions: Sequence[float], efforts: Sequence[float]) -> list[float]:
        """Returns the payoff of each agent."""
        share = self.factor * sum(contributions) / len(contributions)
        pairs = zip(contributions, efforts, strict=True)
        return [share - self.cost * effort + self.bonus * contribution for contribution, effort in pairs]


def free_rider(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """The first agent contributes the sum, and the others say nothing of use."""
    yield Say(f"<answer>{task.data['answer']}</answer>" if context == "agent 0" else "<answer>?</answer>")
