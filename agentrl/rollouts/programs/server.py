"""HTTP server of the policy for programs: one for all episodes of an event loop, up while one of them runs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.proxy.messages import NoSession, RewardsRefused, SessionEnded
from agentrl.proxy.recorder import Recorder
from agentrl.proxy.web import Closing, Sessions, listening
from agentrl.rollouts.programs.recorder import EpisodeRecorder

REMEMBERED = 10_000
"""Maximum of stored keys of ended episodes, for messages."""

MOST_STRAYS = 8
"""The most unsupported requests of an episode that are stored, for its error."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Door:
    """Access of one episode's program to the policy.

    Attributes:
        address: of the server, as seen by the program.
        key: its API key, which also names its session.
        model: the model's name.
    """

    address: str
    key: str
    model: str

    @property
    def url(self) -> str:
        """Base URL of its session: `/v1/...` and `/end` follow."""
        return f"{self.address}/s/{self.key}"


class ProgramServer(Sessions):
    """Sessions of the running programs."""

    model = "agentrl"

    def __init__(self) -> None:
        self._open: dict[str, EpisodeRecorder] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()  # Episode by key.
        self._late: set[str] = set()  # Keys whose programs asked after the end, which is logged once.
        self._users, self._lock = 0, asyncio.Lock()
        self._stack, self._address = AsyncExitStack(), ""

    def __len__(self) -> int:
        return len(self._open)

    def recorder(self, name: str) -> EpisodeRecorder:
        """Returns the recorder of the episode with this key."""
        if (found := self._open.get(name)) is not None:
            return found
        if (episode := self._ended.get(name)) is not None:
            if name not in self._late:
                self._late.add(name)
                _log.warning("a program asked after its episode %s had ended", episode)
            raise SessionEnded(f"episode {episode} has ended: nothing more is recorded")
        raise NoSession(
            "this API key belongs to no episode",
            remedy="use the key that the program was given, such as OPENAI_API_KEY",
        )

    def answered(self, name: str, recorder: Recorder) -> None:
        """Does nothing: the episode ends with its program."""

    async def end(self, name: str, closing: Closing) -> dict[str, Any]:
        """Stores the program's closing call; the episode ends when the program does.

        Raises:
            RewardsRefused: it has rewards. The policy's own shell has the same environment, and could forge them.
        """
        recorder = self.recorder(name)
        if closing.rewards and not recorder.closing_rewards:
            raise RewardsRefused(
                "a closing call with rewards is refused: whatever the policy starts could send one",
                place="agent.closing_rewards",
                remedy="score with the recipe's rewards; or, if the policy's tools cannot reach AGENTRL_URL, "
                "agent: {closing_rewards: true}",
            )
        recorder.closing = closing
        return {"episode": recorder.name, "turns": len(recorder.turns)}

    def stray(self, name: str, asked: str) -> None:
        """Stores an unsupported request for the episode's error."""
        if (recorder := self._open.get(name)) is not None and len(recorder.strays) < MOST_STRAYS:
            recorder.strays.append(asked)

    @asynccontextmanager
    async def admit(self, recorder: EpisodeRecorder) -> AsyncIterator[Door]:
        """Serves an episode until the block ends."""
        key = f"sk-{secrets.token_hex(16)}"
        await self._enter()
        self._open[key] = recorder
        try:
            yield Door(self._address, key, self.model)
        finally:
            del self._open[key]
            self._ended[key] = recorder.name
            while len(self._ended) > REMEMBERED:
                self._late.discard(self._ended.popitem(last=False)[0])
            recorder.close()
            await self._leave()

    async def _enter(self) -> None:
        async with self._lock:
            if not self._users:
                self._address = await self._stack.enter_async_context(listening(self.application(), "127.0.0.1", 0))
            self._users += 1

    async def _leave(self) -> None:
        async with self._lock:
            self._users -= 1
            if not self._users:
                await self._stack.aclose()


_SERVERS: WeakKeyDictionary[asyncio.AbstractEventLoop, ProgramServer] = WeakKeyDictionary()


def server() -> ProgramServer:
    """Returns the server of the running event loop."""
    return _SERVERS.setdefault(asyncio.get_running_loop(), ProgramServer())
