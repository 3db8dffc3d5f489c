"""Checks that work is done beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def beside_the_loop(owner: Any, name: str) -> Iterator[None]:
    """Fails unless a function is called, and the event loop turns during each of its calls.

    Each call waits for a turn of the loop. In the loop's own thread there would be none.

    Args:
        owner: the class or module that has the function.
        name: of the function, which is not async.
    """
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    work: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def waits(*args: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        assert threading.get_ident() != here, f"{name} runs in the event loop"
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        turned.wait()
        return work(*args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, waits)
        yield
    assert calls, f"{name} was not called"
