"""A conversation as it stands: what agents read of it, and what its engine and the record are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.chat.last_images import LastImages
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.config.limits import Limits
from agentrl.rollouts.conversation.offer import Offer
from agentrl.rollouts.conversation.recording import EpisodeEnd, Recording
from agentrl.rollouts.conversation.voice import Voice
from agentrl.tools.base import Tool
from agentrl.tools.methods import ToolMethod
from agentrl.types.engine import Engine, Sampling
from agentrl.types.episode import MAIN, POLICY, Branch, Context, Turn
from agentrl.types.parts.intake import Images
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task
from agentrl.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox


class Standing:
    """Messages, their tokens, and the tools that may be called in them.

    Args:
        name: `main`, or what its context is called.
        role: who speaks in it.
        policy: the name of the voice that speaks.
        voice: if it is another than the policy that trains.

    Attributes:
        opening: the messages before the first reply.
        turns: its own turns so far.
        outcome: set by `finish`; who drives the conversation should return then.
        under_way: the call that goes on now, "" if none.
        seat_outcome: set by `score`: what its turns are credited with in place of the episode's reward.
    """

    def __init__(
        self,
        recording: Recording,
        offer: Offer,
        name: str = MAIN,
        role: str = "agent",
        policy: str = POLICY,
        voice: Voice | None = None,
    ) -> None:
        self.recording, self._offer = recording, offer
        self.name, self.role, self.policy = name, role, policy
        self.opening: list[Message] = []
        self.turns: list[Turn] = []
        self.outcome: EpisodeEnd | None = None
        self.seat_outcome: float | None = None
        self._voice = voice
        self._trains = voice is None or voice.trains
        self._kept = self._trains or (voice is not None and voice.own)
        # Another voice has tokens of its own, which the trajectory of the policy does not take.
        count = offer.renderer.last_images
        images = None if count is None else LastImages.of(count, recording.task.instruction)
        self._thread = Thread(recording.trajectory if self._kept else Trajectory(), images)
        self._branch = Branch(turn=0, reason="tools", at_token=0)  # Why the next prompt starts one, if it does.
        self.under_way = ""
        recording.join(name, self)

    @property
    def id(self) -> str:
        """The id of the episode."""
        return self.recording.id

    @property
    def engine_session(self) -> str:
        """The session of the engine: those of one episode have different prefixes."""
        return self.id if self.name == MAIN else f"{self.id}@{self.name}"

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, the sampled replies included. It grows with the conversation: copy what is kept."""
        return self._thread.messages

    @property
    def rewritten(self) -> bool:
        """Whether the context was replaced since the last reply."""
        return self._thread.restarted

    @property
    def task(self) -> Task:
        return self.recording.task

    @property
    def engine(self) -> Engine:
        return self.recording.engine if self._voice is None else self._voice.engine

    @property
    def sandbox(self) -> Sandbox | None:
        return self.recording.calls.sandbox

    @property
    def images(self) -> Images:
        """The images that the episode has taken in."""
        return self.recording.calls.images

    @property
    def limits(self) -> Limits:
        return self.recording.limits

    @property
    def seed(self) -> int:
        """The seed of the episode."""
        return self.recording.seed

    @property
    def max_turns(self) -> int:
        return self.recording.max_turns

    @property
    def tools(self) -> list[Tool]:
        """The tool instances of the episode, opened."""
        return self._offer.box.instances

    @property
    def methods(self) -> dict[str, ToolMethod]:
        """What the model may call now."""
        return self._offer.methods

    @property
    def renderer(self) -> Renderer:
        return self._offer.renderer

    @property
    def sampling(self) -> Sampling:
        return self._offer.sampling

    @property
    def definitions(self) -> list[dict[str, Any]] | None:
        """Definitions of the tools that could be called at first; None: those of the recipe."""
        return self._offer.definitions

    def prompt_tokens(self) -> int:
        """How many tokens the next prompt has. The engine takes `engine.max_context`, prompt and reply together."""
        return self._thread.length(self.renderer)

    def begin_engine(self) -> None:
        """Tells the engine that the conversation starts."""
        seed = derive_seed(self.recording.seed, *self._named) if self._named else self.recording.seed
        begin = getattr(self.engine, "begin_context", None)
        if self._named and begin is not None:
            begin(self.engine_session, self.task, self.messages, seed, episode=self.id, name=self.name)
        else:
            self.engine.begin_session(self.engine_session, self.task, self.messages, seed)
        if (use_images := getattr(self.engine, "use_images", None)) is not None:
            use_images(self.engine_session, self.images.read)
        if self.definitions is not None:
            self._tell_engine()

    def end_engine(self) -> None:
        """Tells the engine that the conversation does not go on."""
        self.engine.end_session(self.engine_session)

    def record(self) -> Context:
        """What the episode's record says of it."""
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
        """For seeds: those of the main conversation have no name in them."""
        return () if self.name == MAIN else ("context", self.name)

    def _tell_reply(self) -> None:
        """Tells the engine the message that its reply has become."""
        if (replied := getattr(self.engine, "replied", None)) is not None:
            replied(self.engine_session, self.messages[-1])

    def _tell_engine(self) -> None:
        if (use_tools := getattr(self.engine, "use_tools", None)) is not None:
            use_tools(self.engine_session, self.renderer)
