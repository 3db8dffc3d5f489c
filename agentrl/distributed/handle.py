"""Handles and launchers: spawn an object in this process or elsewhere, and call its methods.

    launcher = await open_launcher(recipe, ResourceRequest("rollout_workers", count=2))
    handle = await launcher.spawn("worker 0", RolloutWorker, recipe)
    episode = await handle.call("play", spec)

The object's methods are coroutine functions, and calls may run concurrently. Arguments and results are pickled, except
with the local launcher.
"""

from __future__ import annotations

import asyncio
import pickle
import traceback
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.types.errors import AgentRLError, InfraError
from agentrl.types.stdlib import running_task

CLOSE_S = 30.0
"""Seconds an object has to close itself before its process or actor is killed."""

ActorReply = tuple[Exception | None, Any]
"""The exception that a method raised, or None; and its return value."""


class WorkerDied(InfraError):
    """The process or machine of an object is gone or unreachable. Its pending calls have no result."""

    cause = ""  # not counted as an outage: the worker pool counts dead workers


class RemoteError(AgentRLError):
    """A method raised an exception that cannot be pickled. The message has its class and text."""


class Handle(Protocol):
    """A reference to a spawned object.

    Attributes:
        name: name of the object in messages.
    """

    name: str

    async def call(self, method: str, *args: Any) -> Any:
        """Awaits `object.method(*args)` and returns its result.

        Raises:
            WorkerDied: the object is gone or unreachable.
            Exception: the exception that the method raised.
        """
        ...

    async def close(self) -> None:
        """Cancels pending calls, closes the object and frees its resources. Never raises; may be called twice."""
        ...


class Launcher(Protocol):
    """Spawns objects on reserved resources.

    The constructor takes the launcher's own settings, and by name, if it wants them, `scale` (the section of the
    recipe) and `request` (a `ResourceRequest`).

    Attributes:
        host: address of this machine at which the objects reach it; set when `open` returns.
    """

    host: str

    async def open(self) -> None:
        """Reserves the requested resources.

        Raises:
            AgentRLError: the resources are not available.
        """
        ...

    async def spawn(self, name: str, cls: type, *args: Any) -> Handle:
        """Makes `cls(*args)` on reserved resources.

        Raises:
            WorkerDied: the process or machine was lost meanwhile.
            Exception: the exception that the constructor raised.
        """
        ...

    async def close(self) -> None:
        """Frees the reserved resources. The objects are closed before."""
        ...


async def spawn_within(start_s: float, launcher: Launcher, name: str, cls: type, *args: Any) -> Handle:
    """Calls `launcher.spawn` with a timeout of `start_s` seconds.

    Raises:
        WorkerDied: the object was lost, or did not start in time.
        Exception: the exception that the constructor raised.
    """
    try:
        async with asyncio.timeout(start_s):
            return await launcher.spawn(name, cls, *args)
    except TimeoutError:
        raise WorkerDied(
            f"has not started within {start_s:g} s", place=name, remedy="scale.start_s sets the timeout"
        ) from None


@dataclass(frozen=True)
class ResourceRequest:
    """Resources to reserve on a cluster. Launchers without a cluster may ignore it.

    Attributes:
        key: key of the recipe that asks for them, for messages.
        count: number of objects that run at the same time.
        cpus, gpus: CPUs and GPUs per object.
        gpus_if_any: request no GPUs if the cluster has none.
        spread: spread the objects over machines; if False, pack them onto as few machines as possible.
        beside_driver: the first object is on the driver's machine, and no CPUs are reserved for it.
    """

    key: str
    count: int
    cpus: float = 1
    gpus: float = 0
    gpus_if_any: bool = False
    spread: bool = True
    beside_driver: bool = False


class ActorHost:
    """The remote side of a handle: makes the object, calls its methods, closes it."""

    def __init__(self) -> None:
        self._object: Any = None
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def make(self, cls: type, args: tuple[Any, ...]) -> ActorReply:
        """Makes the object. Returns the constructor's exception, if any, as `call` does."""
        try:
            self._object = cls(*args)
        except Exception as error:
            return portable(error), None
        return None, None

    async def call(self, method: str, args: tuple[Any, ...]) -> ActorReply:
        """Calls a method. Returns (exception, None) or (None, result)."""
        if self._closed:
            return WorkerDied("was closed"), None
        task = running_task()
        self._running.add(task)
        try:
            return None, await getattr(self._object, method)(*args)
        except asyncio.CancelledError:
            if self._closed or task.cancelling():
                raise
            return RemoteError(f"{method} awaited a task that had been cancelled"), None
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
    """The exception if it survives pickling, else a `RemoteError` with its text. Its traceback is added as a note."""
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
    """The result in a reply of `ActorHost`.

    Raises:
        Exception: the exception in the reply.
    """
    error, value = reply
    if error is not None:
        raise error
    return value


class LocalHandle:
    """Handle of an object in this process."""

    def __init__(self, name: str, host: ActorHost) -> None:
        self.name, self._host = name, host

    async def call(self, method: str, *args: Any) -> Any:
        """Calls the method in this process."""
        # The call is a task of its own: closing the handle cancels the call, not the caller.
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
        """Cancels pending calls and closes the object."""
        await self._host.close()


class LocalLauncher:
    """Spawns objects in this process. They run the same code as on a cluster, under one debugger."""

    host = "127.0.0.1"

    async def open(self) -> None:
        """Nothing to reserve."""

    async def spawn(self, name: str, cls: type, *args: Any) -> LocalHandle:
        """Makes the object in this process."""
        host = ActorHost()
        unwrap(await host.make(cls, args))
        return LocalHandle(name, host)

    async def close(self) -> None:
        """Nothing to free."""
