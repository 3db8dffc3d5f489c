"""Values that the standard library types as optional, where they are not."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

Stream = TypeVar("Stream")


def piped(stream: Stream | None) -> Stream:
    """Returns a stream of a child process that was started with a pipe for it.

    Raises:
        ValueError: it was started without.
    """
    if stream is None:
        raise ValueError("the child process has no pipe for this stream: start it with PIPE")
    return stream


def running_task() -> asyncio.Task[Any]:
    """Returns the task that calls this.

    Raises:
        RuntimeError: no task does.
    """
    if (task := asyncio.current_task()) is None:
        raise RuntimeError("no task runs here")
    return task
