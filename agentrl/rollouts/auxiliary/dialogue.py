"""Agent that talks with a user simulated by an auxiliary policy."""

from __future__ import annotations

from agentrl.rollouts.agent import Agent
from agentrl.rollouts.session import Session
from agentrl.types.parts.content import text_of
from agentrl.types.task import Message

PROMPT = """You play a user who talks with an assistant. Write only what the user says, a sentence or two at a time. \
Do not tell everything at once, and make nothing up. When it is done, or cannot be done, say {ends}

You are this user:"""


class DialogueAgent(Agent):
    """Alternates tool calls and replies with a user, until the user ends the conversation or a limit is reached.

    The task's instruction is the user's goal: the policy learns it only from the user. The user's messages are
    observations of the policy, and its turns count in the limits of the episode.

    Args:
        prompt: system prompt of the user before the task's instruction; `{ends}` is the first of `ends`.
        greeting: first message to the user, so that it opens the conversation; "": the policy speaks first.
        ends: text, or one of several, with which the user ends. The policy does not see it.
        policy: name of the auxiliary policy that simulates the user.
    """

    def __init__(
        self,
        prompt: str = PROMPT,
        greeting: str = "Hello. How can I help you?",
        ends: str | tuple[str, ...] = "###STOP###",
        policy: str = "user",
    ) -> None:
        self.ends = (ends,) if isinstance(ends, str) else ends
        self.prompt = prompt.replace("{ends}", self.ends[0])
        self.greeting, self.policy = greeting, policy

    def opening(self, session: Session, system: str | None) -> list[Message]:
        """Returns the system message of the recipe."""
        return [{"role": "system", "content": system}] if system else []

    async def run(self, session: Session) -> None:
        """Sends replies with calls to the tools, others to the user. The last reply to the user is the answer."""
        heard: list[Message] = [{"role": "user", "content": self.greeting}] if self.greeting else []
        user = session.context("user", [self._told(session), *heard], policy=self.policy, tools=[])
        if self.greeting:
            session.say((await user.generate()).text)
        while session.outcome is None:
            reply = await session.generate()
            if reply.calls or reply.errors:
                await session.run_tools(reply)
                continue
            user.say(reply.text)
            said = (await user.generate()).text
            if any(end in said for end in self.ends):
                session.finish("answer", reply.text)
            else:
                session.say(said)

    def _told(self, session: Session) -> Message:
        """Returns the system message of the user."""
        wanted = [text_of(message["content"]) for message in session.task.instruction]
        return {"role": "system", "content": "\n\n".join([self.prompt, *wanted])}
