"""Agents: who drives an episode. `ToolAgent` is the default; subclass `Agent` for another loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from agentrl.registry.registry import Registry, subclass_of
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.session import Session
from agentrl.tools.base import Tool
from agentrl.types.task import Message


class Agent(ABC):
    """Drives one episode. Constructor arguments are settings, which stand beside `agent.use` in the recipe.

    A subclass implements `run`: it calls `session.generate()` and `session.run_tools(reply)` until
    `session.outcome` is set. Exceptions are handled by the runner (the failure table): an agent needs no `try`.

    Attributes:
        forks: how often it calls `session.fork()` in an episode, at most.
        seats: whether it gives contexts outcomes of their own (`context.score`), as players of a game have them.
    """

    forks: int = 0
    seats: bool = False

    @abstractmethod
    async def run(self, session: Session) -> None:
        """Drives the episode until it is finished."""

    def opening(self, session: Session, system: str | None) -> list[Message]:
        """The messages that open the conversation: the system message of the recipe, then the task's."""
        head = [{"role": "system", "content": system}] if system else []
        return [*head, *session.task.instruction]

    def tools(self) -> list[Tool]:
        """Tools of its own, which the model may call beside those of the recipe. Asked once an episode."""
        return []

    def state_key(self) -> Any:
        """The state that the next turn acts on, for anchor-state credit (GiGPO), as `Tool.state_key`. None: no opinion.

        Asked before every turn where the recipe's credit reads states.
        """
        return None


class ToolAgent(Agent):
    """Generate, run the tool calls or ask the environment, until an answer, a tool that ends it, or a limit."""

    async def run(self, session: Session) -> None:
        """The loop. A reply without any call is the answer, unless an environment responds to it.

        Calls of a reply that also answers are run first, and its answer is not taken: the model gave it without having
        seen their results.
        """
        while session.outcome is None:
            await self.take_turn(session)

    async def take_turn(self, conversation: Conversation) -> None:
        """One turn of a conversation, and what follows it."""
        reply = await conversation.generate()
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
    key="agent",
    built_in={
        "tool_agent": "agentrl.rollouts.agent:ToolAgent",
        "compacting_agent": "agentrl.agents.compacting:CompactingAgent",
        "delegating_agent": "agentrl.agents.delegating:DelegatingAgent",
        "reading_agent": "agentrl.agents.reading:ReadingAgent",
        "recent_agent": "agentrl.agents.recent:RecentAgent",
        "tree_agent": "agentrl.agents.tree:TreeAgent",
        "program": "agentrl.rollouts.programs.agent:ProgramAgent",
        "guest": "agentrl.rollouts.programs.guest:GuestAgent",
        "dialogue": "agentrl.rollouts.voices.dialogue:DialogueAgent",
    },
    wanted="an Agent subclass",
    accept=subclass_of(Agent),  # type: ignore[type-abstract]
    contracts=[Agent],
)
