"""Recorder of a program's episode: the proxy's recorder, under the limits of the episode."""

from __future__ import annotations

import asyncio
from typing import Any

from agentrl.proxy.messages import BadRequest, SessionEnded, from_openai
from agentrl.proxy.recorder import ChatReply, ProxyContext, Recorder, Request
from agentrl.proxy.web import Closing
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.engine import ContextOverflow
from agentrl.types.errors import EngineError, InfraError


class EpisodeRecorder(Recorder):
    """Records the requests of one program, and refuses those after a limit or the closing call.

    Attributes:
        closing_rewards: whether a closing call may have rewards.
        closing: the program's closing call.
        failed: error of its last request, if it decides the episode's status.
        limit: the limit that ended the episode.
        limited: set with it.
        strays: requested paths that are not supported.
    """

    def __init__(self, session: Session, *, closing_rewards: bool = False) -> None:
        take = session.images.take
        context = ProxyContext(session.engine, session.renderer, session.sampling, session.seed, take)
        super().__init__(session.id, context)
        self.recording, self.turns = session.state.recording, session.turns
        self.session, self.closing_rewards = session, closing_rewards
        self.closing: Closing | None = None
        self.failed: InfraError | ContextOverflow | None = None
        self.limit: LimitReached | None = None
        self.limited = asyncio.Event()
        self.strays: list[str] = []
        self._under_way: set[asyncio.Task[Any] | None] = set()
        self._admitted = 0  # Replies that are not turns yet.

    async def reply(self, body: dict[str, Any], *, n: int = 1, retried: bool = False) -> list[ChatReply]:
        """Answers a request within the episode's limits.

        Raises:
            SessionEnded: the program has closed its episode.
            BadRequest: no turn is left; the episode ends.
            EngineError: the engine failed or took longer than `limits.generate_s`.
        """
        self._admit(n)
        task = asyncio.current_task()
        self._under_way.add(task)
        seconds = self.session.limits.generate_s
        try:
            async with Deadline(seconds):
                said = await super().reply(body, n=n, retried=retried)
        except TimeoutError:
            self.failed = EngineError(f"no completion within {seconds:g} s", remedy="raise limits.generate_s")
            raise self.failed from None
        except (InfraError, ContextOverflow) as error:
            self.failed = error
            raise
        finally:
            self._under_way.discard(task)
        self.failed = None
        return said

    def _admit(self, n: int) -> None:
        if self.closing is not None:
            raise SessionEnded(f"episode {self.name} was closed: nothing more is recorded")
        if len(self.turns) + self._admitted + n > self.session.max_turns:
            self.limit = LimitReached("turns")
            self.limited.set()
            raise BadRequest(f"the episode's limit of {self.session.max_turns} turns is reached")
        self._admitted += n

    async def _reply(self, body: dict[str, Any], ask: Request) -> ChatReply:
        try:
            return await super()._reply(body, ask)
        finally:
            self._admitted -= 1

    def asked(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
        """Updates the view of a script that replaces a model."""
        super().asked(messages, tools)
        parser, renderer = self.context.renderer_for(tools)
        self.session.messages[:] = [from_openai(message, parser, self.context.take_image) for message in messages]
        self.session.engine.use_tools(self.name, renderer)

    def close(self) -> None:
        """Ends the episode: requests under way are cancelled, and the session takes the opening and the tools."""
        for task in filter(None, self._under_way):
            task.cancel()
        self.finish()
        self.session.info["apis"] = sorted(self.apis)
        self.session.take(self.prompt, self.tools, self.seconds)
