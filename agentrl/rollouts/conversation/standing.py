"""Conversation state: messages, tokens, callable tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.chat.last_images import LastImages
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.config.limits import Limits
from agentrl.rollouts.conversation.offer import Offer
from agentrl.rollouts.conversation.state import EpisodeEnd, EpisodeState
from agentrl.rollouts.conversation.voice import Voice
from agentrl.tools.base import Tool
from agentrl.tools.methods import ToolMethod
from agentrl.types.engine import Engine, Sampling
from agentrl.types.episode import MAIN, POLICY, Branch, Context, TurnDraft
from agentrl.types.parts.intake import Images
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task
from agentrl.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox


class Standing:
    """State of a conversation: messages, their tokens, and the callable tools.

    Args:
        name: `main`, or the name of its context.
        role: the speaking role.
        policy: the name of the speaking policy.
        voice: the speaking policy, if it is not the main one.

    Attributes:
        opening: the messages before the first reply.
        turns: its own turns so far.
        outcome: set by `finish`; the agent should then return.
        under_way: the running call, "" if none.
        seat_outcome: set by `score`: outcome for the credit of its turns, in place of the episode's reward.
    """

    def __init__(
        self,
        state: EpisodeState,
        offer: Offer,
        name: str = MAIN,
        role: str = "agent",
        policy: str = POLICY,
        voice: Voice | None = None,
    ) -> None:
        self.state, self._offer = state, offer
        self.name, self.role, self.policy = name, role, policy
        self.opening: list[Message] = []
        self.turns: list[TurnDraft] = []
        self.outcome: EpisodeEnd | None = None
        self.seat_outcome: float | None = None
        self._voice = voice
        self._trains = voice is None or voice.trains
        self._kept = self._trains or (voice is not None and voice.own)
        # Tokens of another policy are not part of the trajectory.
        count = offer.renderer.last_images
        images = None if count is None else LastImages.of(count, state.task.instruction)
        self._thread = Thread(state.recording.trajectory if self._kept else Trajectory(), images)
        self._branch = Branch(turn=0, reason="tools", at_token=0)  # Reason, if the next prompt starts one.
        self.under_way = ""
        state.join(name, self)

    @property
    def id(self) -> str:
        """Id of the episode."""
        return self.state.id

    @property
    def engine_session(self) -> str:
        """Session of the engine: those of one episode have different prefixes."""
        return self.id if self.name == MAIN else f"{self.id}@{self.name}"

    @property
    def messages(self) -> list[Message]:
        """Conversation so far, with the sampled replies. It grows with the conversation: copy what you store."""
        return self._thread.messages

    @property
    def rewritten(self) -> bool:
        """True if the context was replaced since the last reply."""
        return self._thread.restarted

    @property
    def task(self) -> Task:
        return self.state.task

    @property
    def engine(self) -> Engine:
        return self.state.engine if self._voice is None else self._voice.engine

    @property
    def sandbox(self) -> Sandbox | None:
        return self.state.calls.sandbox

    @property
    def images(self) -> Images:
        """Images of the episode so far."""
        return self.state.calls.images

    @property
    def limits(self) -> Limits:
        return self.state.limits

    @property
    def seed(self) -> int:
        """Seed of the episode."""
        return self.state.seed

    @property
    def max_turns(self) -> int:
        return self.state.max_turns

    @property
    def tools(self) -> list[Tool]:
        """Tool instances of the episode, opened."""
        return self._offer.box.instances

    @property
    def methods(self) -> dict[str, ToolMethod]:
        """Tools that the model may call now."""
        return self._offer.methods

    @property
    def renderer(self) -> Renderer:
        return self._offer.renderer

    @property
    def sampling(self) -> Sampling:
        return self._offer.sampling

    @property
    def definitions(self) -> list[dict[str, Any]] | None:
        """Definitions of the tools of the first turn; None: those of the recipe."""
        return self._offer.definitions

    def prompt_tokens(self) -> int:
        """Returns the length of the next prompt. The engine takes `engine.max_context` tokens, prompt and reply
        together.
        """
        return self._thread.length(self.renderer)

    def begin_engine(self) -> None:
        """Announces the conversation to the engine."""
        seed = derive_seed(self.state.seed, *self._named) if self._named else self.state.seed
        session, task, messages = self.engine_session, self.task, self.messages
        if self._named:
            self.engine.begin_context(session, task, messages, seed, episode=self.id, name=self.name)
        else:
            self.engine.begin_session(session, task, messages, seed)
        self.engine.use_images(session, self.images.read)
        if self.definitions is not None:
            self._tell_engine()

    def end_engine(self) -> None:
        """Ends the conversation's session of the engine."""
        self.engine.end_session(self.engine_session)

    def record(self) -> Context:
        """Returns the context for the episode's record."""
        said = Context(
            role=self.role,
            prompt=self.opening,
            policy=self.policy,
            tools=self.definitions,
            outcome=self.seat_outcome,
        )
        voice = self._voice
        return said if voice is None else msgspec.structs.replace(said, version=voice.version, trains=voice.trains)

    @property
    def _named(self) -> tuple[str, ...]:
        """Names for seeds: those of the main conversation have none."""
        return () if self.name == MAIN else ("context", self.name)

    def _tell_reply(self) -> None:
        """Passes the message of the last reply to the engine."""
        self.engine.replied(self.engine_session, self.messages[-1])

    def _tell_engine(self) -> None:
        self.engine.use_tools(self.engine_session, self.renderer)
