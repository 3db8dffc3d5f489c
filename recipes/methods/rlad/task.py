"""Two players: one states an abstraction of a problem, the other solves the problem with it."""

from __future__ import annotations

from agentrl import Session, ToolAgent
from agentrl.types.parts.content import text_of

ASK = (
    "State in one or two sentences a principle, a lemma or a procedure that helps to solve this problem. Do not solve "
    "it, and do not name its answer.\n\n{}"
)


class Abstracted(ToolAgent):
    """The policy `abstractor` speaks first, in a context of its own; the policy solves the problem with its words."""

    async def run(self, session: Session) -> None:
        """Runs the abstractor, then the loop of `tool_agent`."""
        question = "\n".join(text_of(message["content"]) for message in session.task.instruction)
        asked = [{"role": "user", "content": ASK.format(question)}]
        abstractor = session.context("abstraction", asked, policy="abstractor", tools=[])
        session.say(f"Use this: {(await abstractor.generate()).text.strip()}")
        await super().run(session)
