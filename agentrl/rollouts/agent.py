"""Agents: the loops that drive an episode. `ToolAgent` is the default; subclass `Agent` for another loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from agentrl.registry.registry import Registry, subclass_of
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.session import Session
from agentrl.tools.base import Tool
from agentrl.types.task import Message


class Agent(ABC):
    """Drives one episode. Constructor arguments are settings, given next to `agent.use` in the recipe.

    A subclass implements `run`: it calls `session.generate()` and `session.run_tools(reply)` until
    `session.outcome` is set. Exceptions are handled by the runner (the failure table): an agent needs no `try`.

    Attributes:
        forks: maximum number of calls of `session.fork()` in an episode.
        seats: whether it gives contexts separate outcomes (`context.score`), like those of players of a game.
    """

    forks: int = 0
    seats: bool = False

    @abstractmethod
    async def run(self, session: Session) -> None:
        """Drives the episode until it is finished."""

    def opening(self, session: Session, system: str | None) -> list[Message]:
        """Returns the messages that open the conversation: the system message of the recipe, then the task's."""
        head = [{"role": "system", "content": system}] if system else []
        return [*head, *session.task.instruction]

    def tools(self) -> list[Tool]:
        """Returns the agent's own tools, in addition to those of the recipe. Called once per episode."""
        return []

    def state_key(self) -> Any:
        """Returns the state that the next turn acts on, for anchor-state credit (GiGPO), see `Tool.state_key`; or None.

        Called before every turn if the recipe's credit reads states.
        """
        return None


class ToolAgent(Agent):
    """Loop that generates, then runs tool calls or asks the environment, until an answer, a tool's end, or a limit."""

    async def run(self, session: Session) -> None:
        """Runs turns until the episode ends. A reply without calls is the answer, unless an environment responds to it.

        If a reply has calls and an answer, the calls are run and the answer is ignored: the model gave it without
        having seen the results.
        """
        while session.outcome is None:
            await self.take_turn(session)

    async def take_turn(self, conversation: Conversation, begin: str = "") -> None:
        """Generates a reply, then runs its tool calls, asks the environment, or finishes with the answer.

        Args:
            begin: text that the reply begins with, see `Conversation.generate`.
        """
        reply = await conversation.generate(begin=begin)
        cut = conversation.turns[-1].finish == "length"
        if reply.calls:
            await conversation.run_tools(reply)
        elif reply.answer is None and cut:
            conversation.say(f"The reply was cut after {conversation.sampling.max_tokens} tokens: be shorter.")
        elif reply.answer is None and reply.errors:
            await conversation.run_tools(reply)
        elif await conversation.respond(reply) is None:
            conversation.finish("answer", reply.text.strip() if reply.answer is None else reply.answer)


AGENTS: Registry[type[Agent]] = Registry(
    kind="agent",
    group="agents",
    key="agent",
    built_in={
        "tool_agent": "agentrl.rollouts.agent:ToolAgent",
        "compacting_agent": "agentrl.agents.compacting:CompactingAgent",
        "delegating_agent": "agentrl.agents.delegating:DelegatingAgent",
        "reading_agent": "agentrl.agents.reading:ReadingAgent",
        "synthesis_agent": "agentrl.agents.synthesis:SynthesisAgent",
        "recent_agent": "agentrl.agents.recent:RecentAgent",
        "retrying_agent": "agentrl.agents.retrying:RetryingAgent",
        "tree_agent": "agentrl.agents.tree:TreeAgent",
        "counterfactual_agent": "agentrl.agents.counterfactual:CounterfactualAgent",
        "program": "agentrl.rollouts.programs.agent:ProgramAgent",
        "guest": "agentrl.rollouts.programs.guest:GuestAgent",
        "dialogue": "agentrl.rollouts.auxiliary.dialogue:DialogueAgent",
    },
    wanted="an Agent subclass",
    accept=subclass_of(Agent),  # type: ignore[type-abstract]
    contracts=[Agent],
)
