"""Agent with sub-agents: a tool call opens a separate conversation; its answer is the tool's result."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.tools.base import Tool, tool
from agentrl.types.engine import ContextOverflow
from agentrl.types.errors import ToolError

SYSTEM = "You are a helper. Do the task with your tools, and reply with the result: only your last reply is read."


class DelegatingAgent(ToolAgent):
    """Extends `tool_agent` by the tool `delegate(task)`, which gives a subtask to a helper.

    A helper is a context of the same episode, with the same tools and policy. Its turns are trained and get credit with
    the others. Several calls of one reply run concurrently.

    Args:
        helper_system: system message of a helper.
        helper_turns: maximum turns of one helper.
        timeout_s: timeout of one helper.
    """

    def __init__(
        self,
        helper_system: str = SYSTEM,
        helper_turns: Annotated[int, Field(gt=0)] = 8,
        timeout_s: Annotated[float, Field(gt=0)] = 600.0,
    ) -> None:
        self.helper_system, self.helper_turns = helper_system, helper_turns
        self._delegate = Delegate(self)
        self._delegate.timeout_s = timeout_s
        self._session: Session  # Since `run`.
        self._helpers = 0

    def tools(self) -> list[Tool]:
        """Returns the tool `delegate`."""
        return [self._delegate]

    async def run(self, session: Session) -> None:
        """Runs the loop of `tool_agent`."""
        self._session = session
        await super().run(session)

    async def ask(self, task: str) -> str:
        """Runs a helper on a task and returns its answer.

        Raises:
            ToolError: the helper reached a limit before it answered.
        """
        session = self._session
        self._helpers += 1
        messages = [{"role": "system", "content": self.helper_system}, {"role": "user", "content": task}]
        own = [name for name, method in session.methods.items() if method.owner is not self._delegate]
        helper = session.context(f"helper-{self._helpers}", messages, tools=own, role="helper")
        try:
            await self._work(helper)
        except LimitReached:
            raise ToolError("the episode has no turn left") from None
        except ContextOverflow:
            raise ToolError("the helper's context is full") from None
        if helper.outcome is None:
            raise ToolError(f"the helper did not answer within {self.helper_turns} turns")
        return helper.outcome.answer or ""

    async def _work(self, helper: Conversation) -> None:
        while helper.outcome is None and len(helper.turns) < self.helper_turns:
            await self.take_turn(helper)


class Delegate(Tool):
    """Tool of a `DelegatingAgent`."""

    parallel = True

    def __init__(self, agent: DelegatingAgent) -> None:
        self._agent = agent

    @tool
    async def delegate(self, task: str) -> str:
        """Gives a part of the work to a helper, who has your tools but does not see this conversation.

        Args:
            task: what the helper shall do, with all that it needs to know.
        """
        return await self._agent.ask(task)
