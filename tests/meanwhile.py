"""Does something to what runs, at the moment when it has got so far."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.waiting import until


@contextmanager
def when(condition: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Calls `act` in a thread as soon as the condition is true. Fails if the block ends before that.

    Raises:
        Exception: what `act` raised, once the block has ended.
    """
    ended, acted = threading.Event(), False
    errors: list[Exception] = []

    def work() -> None:
        nonlocal acted
        until(lambda: ended.is_set() or condition())
        acted = bool(condition())
        try:
            if acted:
                act()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
    assert acted, "it ended before the moment came"
