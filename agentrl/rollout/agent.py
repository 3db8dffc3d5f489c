"""Agents: who drives an episode. `ToolAgent` is the default; subclass `Agent` for another loop."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentrl.registry.registry import Registry, subclass_of
from agentrl.rollout.session import Session
from agentrl.types.task import Message


class Agent(ABC):
    """Drives one episode. Constructor arguments are settings, which stand beside `agent.use` in the recipe.

    A subclass implements `run`: it calls `session.generate()` and `session.run_tools(reply)` until
    `session.outcome` is set. Exceptions are handled by the runner (the failure table): an agent needs no `try`.
    """

    @abstractmethod
    async def run(self, session: Session) -> None:
        """Drives the episode until it is finished."""

    def opening(self, session: Session, system: str | None) -> list[Message]:
        """The messages that open the conversation: the system message of the recipe, then the task's."""
        head = [{"role": "system", "content": system}] if system else []
        return [*head, *session.task.instruction]


class ToolAgent(Agent):
    """Generate, run the tool calls, show the results, until an answer, a tool that ends it, or a limit."""

    async def run(self, session: Session) -> None:
        """The loop. A reply without any call is the answer.

        Calls of a reply that also answers are run first, and its answer is not taken: the model gave it without having
        seen their results.
        """
        while session.outcome is None:
            reply = await session.generate()
            cut = session.turns[-1].finish == "length"
            if reply.calls:
                await session.run_tools(reply)
            elif reply.answer is not None:
                session.finish("answer", reply.answer)
            elif cut:
                session.say(f"The reply was cut after {session.sampling.max_tokens} tokens: be shorter.")
            elif reply.errors:
                await session.run_tools(reply)
            else:
                session.finish("answer", reply.text.strip())


AGENTS: Registry[type[Agent]] = Registry(
    kind="agent",
    key="agent",
    built_in={"tool_agent": "agentrl.rollout.agent:ToolAgent"},
    wanted="an Agent subclass",
    accept=subclass_of(Agent),  # type: ignore[type-abstract]
    contracts=[Agent],
)
