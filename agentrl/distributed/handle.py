"""Handles: methods of an object, called wherever that was put.

    launcher = await open_launcher(recipe, ResourceRequest("rollout_workers", count=2))
    handle = await launcher.spawn("worker 0", RolloutWorker, recipe)
    episode = await handle.call("play", spec)

The object's methods are coroutine functions, and many calls may run at once. What goes in and out is pickled, except
locally.
"""

from __future__ import annotations

import asyncio
import pickle
import traceback
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.types.errors import AgentRLError, InfraError

CLOSE_S = 30.0
"""So long an object has to close itself before its place is taken away."""

ActorReply = tuple[Exception | None, Any]
"""What a method raised, or None and what it returned."""


class WorkerDied(InfraError):
    """What held the object is gone: its process, its machine, or the way there. Its calls did not end."""

    cause = ""  # its worker pool counts


class RemoteError(AgentRLError):
    """A method raised something that cannot travel; the message says what."""


class Handle(Protocol):
    """An object somewhere.

    Attributes:
        name: for messages.
    """

    name: str

    async def call(self, method: str, *args: Any) -> Any:
        """What `object.method(*args)` returns.

        Raises:
            WorkerDied: nobody will answer.
            Exception: what the method raised.
        """
        ...

    async def close(self) -> None:
        """Cancels what runs there, closes the object and takes its place away. Never raises; may be called twice."""
        ...


class Launcher(Protocol):
    """Where objects are put.

    Its constructor takes its own settings, and by name what it asks for of `scale` (the section of the recipe) and
    `request` (a `ResourceRequest`).

    Attributes:
        host: an address of this machine under which the objects reach it; set when `open` returns.
    """

    host: str

    async def open(self) -> None:
        """Reserves what was requested.

        Raises:
            AgentRLError: it cannot.
        """
        ...

    async def spawn(self, name: str, cls: type, *args: Any) -> Handle:
        """Makes `cls(*args)` there.

        Raises:
            WorkerDied: the place was lost meanwhile.
            Exception: what the constructor raised.
        """
        ...

    async def close(self) -> None:
        """Gives back what was taken for the objects. They are closed before."""
        ...


async def spawn_within(start_s: float, launcher: Launcher, name: str, cls: type, *args: Any) -> Handle:
    """`launcher.spawn`, for so many seconds.

    Raises:
        WorkerDied: as `put`, also if it takes longer.
        Exception: what the constructor raised.
    """
    try:
        async with asyncio.timeout(start_s):
            return await launcher.spawn(name, cls, *args)
    except TimeoutError:
        raise WorkerDied(
            f"has not started within {start_s:g} s", place=name, remedy="scale.start_s sets the patience"
        ) from None


@dataclass(frozen=True)
class ResourceRequest:
    """What objects take of a cluster. Elsewhere they take what they need.

    Attributes:
        key: of the recipe, for messages.
        count: objects at once.
        cpus, gpus: of each.
        gpus_if_any: no GPUs on a cluster that has none.
        spread: over as many machines as there are; else on as few as they fit on.
        beside_driver: the first object's place is on the driver's machine, whose CPUs are not counted for it.
    """

    key: str
    count: int
    cpus: float = 1
    gpus: float = 0
    gpus_if_any: bool = False
    spread: bool = True
    beside_driver: bool = False


class ActorHost:
    """Beside the object, in its place: makes it, calls it, closes it."""

    def __init__(self) -> None:
        self._object: Any = None
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def make(self, cls: type, args: tuple[Any, ...]) -> ActorReply:
        """Makes the object. Returns as `call`."""
        try:
            self._object = cls(*args)
        except Exception as error:
            return portable(error), None
        return None, None

    async def call(self, method: str, args: tuple[Any, ...]) -> ActorReply:
        """Calls a method."""
        if self._closed:
            return WorkerDied("was closed"), None
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return None, await getattr(self._object, method)(*args)
        except asyncio.CancelledError:
            if self._closed or task.cancelling():
                raise
            return RemoteError(f"{method} awaited something that had been cancelled"), None
        except Exception as error:
            return portable(error), None
        finally:
            self._running.discard(task)

    async def close(self) -> ActorReply:
        """Cancels all calls, then closes the object."""
        if not self._closed:
            self._closed = True
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            if self._object is not None:
                await self._object.close()
        return None, None


def portable(error: Exception) -> Exception:
    """The exception if it survives pickling, else a `RemoteError` that tells of it; with its traceback as a note."""
    lines = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))
        survives = type(copy) is type(error) and str(copy) == str(error)
    except Exception:
        survives = False
    told: Exception = error if survives else RemoteError(f"{type(error).__name__}: {error}")
    told.add_note(f"where it was raised:\n{lines[-8000:]}")
    return told


def unwrap(reply: ActorReply) -> Any:
    """The value of a host's reply.

    Raises:
        Exception: the reply is one.
    """
    error, value = reply
    if error is not None:
        raise error
    return value


class LocalHandle:
    """The object in this process."""

    def __init__(self, name: str, host: ActorHost) -> None:
        self.name, self._host = name, host

    async def call(self, method: str, *args: Any) -> Any:
        """Calls it."""
        # A task of its own: closing cancels the call, not who waits for it.
        reply = asyncio.create_task(self._host.call(method, args))
        try:
            return unwrap(await reply)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if waiting is not None and waiting.cancelling():
                reply.cancel()
                raise
            raise WorkerDied("was closed", place=self.name) from None

    async def close(self) -> None:
        """Closes it."""
        await self._host.close()


class LocalLauncher:
    """This process: the same code as on a cluster, with a debugger at hand."""

    host = "127.0.0.1"

    async def open(self) -> None:
        """Nothing to reserve."""

    async def spawn(self, name: str, cls: type, *args: Any) -> LocalHandle:
        """Makes the object here."""
        host = ActorHost()
        unwrap(await host.make(cls, args))
        return LocalHandle(name, host)

    async def close(self) -> None:
        """Nothing was taken."""
