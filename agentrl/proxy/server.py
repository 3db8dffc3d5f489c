"""`agentrl proxy`: sessions, which a program's first request opens, and which become stored episodes.

A session without a closing call is stored, without rewards from the program, after `idle_s` or when the proxy stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any

import msgspec
from aiohttp import web

from agentrl.proxy.messages import NoSession
from agentrl.proxy.recorder import ProxyContext, Recorder
from agentrl.proxy.web import Closing, Sessions, TooManySessions
from agentrl.types.clocks.heartbeat import heartbeat
from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import earned, turns_of

MOST_SESSIONS = 10_000
"""Maximum number of open sessions."""

MOST_STRAYS = 100
"""The most requests to unsupported paths that are logged."""

_log = logging.getLogger(__name__)


async def _unscored(episode: Episode) -> Episode:
    return episode


class Proxy(Sessions):
    """Sessions by name. The first request with a name opens its session.

    Args:
        store: stores the episode of an ended session.
        taken: episode ids of the run; a session with a taken name becomes the episode `NAME~1`, ...
        idle_s: seconds without a request after which a session ends, while the proxy is running.
        names: of the proxy, as programs may call it, besides its address.
        score: scores an ended episode before it is stored.
    """

    def __init__(
        self,
        context: ProxyContext,
        store: Callable[[Episode], None],
        *,
        model: str,
        taken: set[str],
        idle_s: float,
        score: Callable[[Episode], Awaitable[Episode]] = _unscored,
        names: Collection[str] = (),
    ) -> None:
        self.names = names
        self.context, self.model, self.idle_s = context, model, idle_s
        self.sessions: dict[str, Recorder] = {}
        self._ending: set[asyncio.Task[Episode]] = set()
        self._swept: set[asyncio.Task[None]] = set()
        self._store, self._taken, self._score = store, set(taken), score
        self._strays = 0

    def app(self) -> web.Application:
        """The web application. It ends idle sessions while it runs, and all sessions when it stops."""
        app = self.application()
        app.cleanup_ctx.append(self._tend)
        return app

    def __len__(self) -> int:
        return len(self.sessions)

    def recorder(self, name: str) -> Recorder:
        """The recorder of a session; opens the session if the name is new.

        Raises:
            TooManySessions: it is new, and too many are open.
        """
        if name not in self.sessions:
            if len(self.sessions) >= MOST_SESSIONS:
                raise TooManySessions(
                    f"{MOST_SESSIONS} sessions are open",
                    remedy="end sessions by the closing call, or lower --idle-s",
                )
            id, number = name, 0
            while id in self._taken:
                number += 1
                id = f"{name}~{number}"
            self._taken.add(id)
            self.sessions[name] = Recorder(id, self.context, group=name)
            self.sessions[name].touched = heartbeat().lived()
        return self.sessions[name]

    def answered(self, name: str, recorder: Recorder) -> None:
        """Ends a session without replies, after refused requests."""
        recorder.touched = heartbeat().lived()
        if not recorder.turns and not recorder.requests and self.sessions.get(name) is recorder:
            del self.sessions[name]
            self._taken.discard(recorder.name)
            self.context.engine.end_session(recorder.name)

    def stray(self, name: str, asked: str) -> None:
        """Logs the request, if it is among the first."""
        self._strays += 1
        if self._strays <= MOST_STRAYS:
            _log.warning("a program requested %s (session %.200r), which the proxy does not support", asked, name)
        if self._strays == MOST_STRAYS:
            _log.warning("further requests of this kind are not logged")

    async def end(self, name: str, closing: Closing) -> dict[str, Any]:
        """Scores and stores a session, unless no reply reached the program.

        Scoring continues if this is cancelled: the session is removed from the list already, and would be lost.
        """
        if name not in self.sessions:
            raise NoSession(f"there is no session {name!r}; it may have ended already")
        recorder = self.sessions[name]
        episode = recorder.episode(rewards=closing.rewards, answer=closing.answer, data=closing.data)
        del self.sessions[name]
        self.context.engine.end_session(recorder.name)
        if not episode.turns:
            return {}
        episode = msgspec.structs.replace(episode, group_id=closing.group or recorder.group)
        scoring = asyncio.create_task(self._scored_and_stored(episode))
        self._ending.add(scoring)
        scoring.add_done_callback(self._ending.discard)
        episode = await asyncio.shield(scoring)
        return {"episode": episode.id, "turns": turns_of(episode), "reward": earned(episode)}

    async def _scored_and_stored(self, episode: Episode) -> Episode:
        episode = await self._score(episode)
        self._store(episode)
        return episode

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.idle_s / 4))
            now = heartbeat().lived()
            idle = [name for name, one in self.sessions.items() if not one.requests and now - one.touched > self.idle_s]
            ending = asyncio.create_task(self._end_all(idle))
            self._swept.add(ending)
            ending.add_done_callback(self._swept.discard)
            await asyncio.shield(ending)  # a failure is told, also if the proxy stops meanwhile

    async def _end_all(self, names: list[str]) -> None:
        _report(await asyncio.gather(*(self.end(name, Closing()) for name in names), return_exceptions=True))

    async def _tend(self, app: web.Application) -> AsyncIterator[None]:
        heartbeat().listen()
        sweeping = asyncio.create_task(self._sweep())
        yield
        heartbeat().ignore()
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
        await asyncio.gather(*self._swept)
        left = [self.end(name, Closing()) for name in self.sessions]
        _report(await asyncio.gather(*left, *self._ending, return_exceptions=True))


def _report(ends: Iterable[object]) -> None:
    """Logs failures. The other sessions are stored anyway."""
    for error in ends:
        if isinstance(error, Exception):
            _log.error("a session could not be stored: %s", error, exc_info=error)
