"""Episodes of a recipe that are driven from outside: `reset` and `step` in place of a model."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from agentrl.api.recipes import AnyRecipe, Overrides, given_recipe
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.distributed.worker_pool import open_runners
from agentrl.engines.asking import AskingEngine
from agentrl.engines.scripted import Say
from agentrl.rollouts.builder import build
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, InfraError
from agentrl.types.figures.of_episodes import earned
from agentrl.types.parts.content import Part
from agentrl.types.task import Message

T = TypeVar("T")


class Observed(msgspec.Struct, frozen=True):
    """Observation after an action.

    Attributes:
        messages: since the last action; at first the opening messages of the episode.
        tools: definitions of the tools that can be called now.
        episode: the whole episode, if it has ended.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    episode: Episode | None = None

    @property
    def done(self) -> bool:
        """True if the episode has ended."""
        return self.episode is not None

    @property
    def reward(self) -> float:
        """The episode's reward, with those of turns, when it has ended; 0 before."""
        return 0.0 if self.episode is None else earned(self.episode) or 0.0


class Driven:
    """A recipe whose episodes are driven from outside, several at a time. They run in a separate thread.

    Nothing is recorded. A limit of the recipe (`max_turns`, `limits.episode_s`) ends an episode as in a rollout.

    Raises:
        AgentRLError: the recipe or its tasks are wrong.
    """

    def __init__(self, recipe: AnyRecipe, overrides: Overrides = ()) -> None:
        given = given_recipe(recipe, overrides)
        once = given.limits.model_copy(update={"retries": 0})  # a second attempt would ask for the same turns again
        self.recipe = given.model_copy(update={"limits": once})
        self.recipe._base = given.base
        self.parts = build(self.recipe)
        _ = self.parts.tasks  # made before the event loop runs: code that makes them may compute for seconds
        self._count = itertools.count()
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._sessions: set[OutsideSession] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentrl-driven", daemon=True)
        self._thread.start()
        self.runners = self.run(self._stack.enter_async_context(open_runners(self.parts)))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the thread of the episodes. Returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def session(self) -> OutsideSession:
        """Opens a session, which plays one episode after the other. Sessions run concurrently."""
        session = OutsideSession(self)
        self._sessions.add(session)
        return session

    def forget(self, session: OutsideSession) -> None:
        """Aborts a session and its episode."""
        self._sessions.discard(session)
        self.run(session.leave())

    def spec(self, index: int) -> EpisodeSpec:
        """Specifies a new episode of a task, by its position. Positions wrap around."""
        task, number = self.parts.tasks.at(index), next(self._count)
        return EpisodeSpec(f"driven/{number:06d}-{task.id}", f"driven/{number:06d}", task, split="rollout")

    def close(self) -> None:
        """Aborts all running episodes, and closes sandboxes and the thread."""
        for session in [*self._sessions]:
            session.close()
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class OutsideSession:
    """Plays one episode at a time."""

    def __init__(self, driven: Driven) -> None:
        self._driven = driven
        self._playing: asyncio.Task[Sequence[Episode]] | None = None
        self._asked: asyncio.Queue[Observed] = asyncio.Queue()
        self._turn: asyncio.Future[Say] | None = None
        self._blobs: dict[str, bytes] = {}

    def image(self, part: Part) -> bytes:
        """Returns the file of an image that an observation of this episode holds."""
        return self._blobs[part["blob"]]

    def reset(self, index: int = 0) -> Observed:
        """Begins an episode of a task, by its position. Aborts a running one.

        Raises:
            AgentRLError: the task is wrong, or its environment does not start.
        """
        return self._driven.run(self._reset(index))

    def step(self, said: Say) -> Observed:
        """Plays the next turn: text as the model would write it, calls by name and arguments, or both.

        Raises:
            AgentRLError: no episode is running, or the infrastructure failed; the episode is then invalid.
        """
        return self._driven.run(self._step(said))

    def close(self) -> None:
        """Gives up the episode that is played."""
        self._driven.forget(self)

    async def _reset(self, index: int) -> Observed:
        await self.leave()
        parts, runners = self._driven.parts, self._driven.runners
        renderer = parts.renderer(ByteTokenizer())
        engine, spec = AskingEngine(self._ask, renderer), self._driven.spec(index)
        self._blobs.clear()
        context = parts.context(engine, renderer, runners.backend, runners.speakers)
        runner = runners.for_context(replace(context, put_blob=self._put, get_blob=self._blobs.__getitem__))
        runner.expect([spec])
        self._playing = asyncio.create_task(runner.play(spec))
        return await self._next(self._playing)

    def _put(self, data: bytes) -> str:
        self._blobs[name := hashlib.sha256(data).hexdigest()] = data
        return name

    async def _step(self, said: Say) -> Observed:
        if self._turn is None or self._playing is None:
            raise AgentRLError("no episode is played", remedy="reset begins one")
        self._turn.set_result(said)
        self._turn = None
        return await self._next(self._playing)

    async def _ask(self, messages: list[Message], tools: list[dict[str, Any]]) -> Say:
        self._turn = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(Observed(messages, tools))
        return await self._turn

    async def _next(self, playing: asyncio.Task[Sequence[Episode]]) -> Observed:
        """Returns the observation at the next turn, or at the end."""
        asked = asyncio.create_task(self._asked.get())
        await asyncio.wait({asked, playing}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        self._playing = self._turn = None
        *_, episode = playing.result()
        if episode.error is not None:
            raise InfraError(f"{episode.status}: {episode.error.kind}: {episode.error.message}", place=episode.task.id)
        return Observed(episode.turns[-1].observations if episode.turns else [], [], episode)

    async def leave(self) -> None:
        """Gives up the episode that is played, in the thread of the episodes."""
        playing, self._playing, self._turn = self._playing, None, None
        if playing is not None:
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing
        while not self._asked.empty():
            self._asked.get_nowait()
