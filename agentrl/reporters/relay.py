"""Reporters that forward events: to several reporters, or to one that must not delay or end a run."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from agentrl.types.episode import Episode
from agentrl.types.errors import REMEDY, AgentRLError
from agentrl.types.reporter import Metrics, Reporter, RunStart

_log = logging.getLogger(__name__)

CLOSE_S = 60.0
"""Seconds that a tracker may take at the end of a run to send its remaining events."""

_MOST_WAITING = 10_000
"""Maximum number of queued events of a tracker: a tracker that hangs must not fill the memory."""


_PASSED_ON = ("phase", "step", "episode_stage", "episode", "work", "watch", "metrics", "note", "warning")


class Forwarder(Reporter):
    """Forwards the events between `started` and `ended`."""

    def pass_on(self, event: str, *args: Any) -> None:
        """Forwards an event, by its name."""
        raise NotImplementedError

    def phase(self, name: str, total: int) -> None:
        self.pass_on("phase", name, total)

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        self.pass_on("step", done, metrics)

    def episode_stage(self, episode_id: str, stage: str | None) -> None:
        self.pass_on("episode_stage", episode_id, stage)

    def episode(self, episode: Episode) -> None:
        self.pass_on("episode", episode)

    def work(self, name: str, done: int, total: int) -> None:
        self.pass_on("work", name, done, total)

    def watch(self, kind: str, read: Callable[[], Any]) -> None:
        self.pass_on("watch", kind, read)

    def metrics(self, line: Metrics) -> None:
        self.pass_on("metrics", line)

    def note(self, text: str) -> None:
        self.pass_on("note", text)

    def warning(self, text: str) -> None:
        self.pass_on("warning", text)


class Several(Forwarder):
    """Forwards events to several reporters, in order."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self.reporters = list(reporters)
        self._told: list[Reporter] = []

    def started(self, run: RunStart) -> None:
        for reporter in self.reporters:
            self._told.append(reporter)
            reporter.started(run)

    def pass_on(self, event: str, *args: Any) -> None:
        for reporter in self.reporters:
            getattr(reporter, event)(*args)

    def ended(self, error: BaseException | None) -> None:
        """Ends the started reporters, the first one last: it may show the warnings of the others."""
        for reporter in reversed(self._told):
            reporter.ended(error)


class Guarded(Forwarder):
    """Forwards events to a reporter in its own thread. If it raises during the run, one warning is logged.

    Args:
        place: the reporter's key in the recipe, for messages.
    """

    def __init__(self, inner: Reporter, place: str) -> None:
        self.inner, self.place = inner, place
        self._warned = False
        self._heard = {name for name in _PASSED_ON if getattr(type(inner), name) is not getattr(Reporter, name)}
        self._events: queue.Queue[tuple[str, tuple[Any, ...], Future[None]] | None] = queue.Queue(_MOST_WAITING)
        # A daemon: a reporter that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=place, daemon=True)

    def started(self, run: RunStart) -> None:
        """Waits until the reporter is ready.

        Raises:
            AgentRLError: the reporter cannot start. If the run continues an earlier one, this is only a warning.
        """
        self._thread.start()
        error = self._put("started", run).exception()
        if error is None:
            return
        if run.continues:
            self._fail(error)
            return
        told = error if isinstance(error, AgentRLError) else None
        raise AgentRLError(
            told.message if told else f"the tracker cannot begin: {_line(error)}",
            place=self.place,
            remedy=(told.remedy if told else None) or "fix that, or remove the tracker: --set 'track=[]'",
        ) from error

    def pass_on(self, event: str, *args: Any) -> None:
        if event in self._heard:
            self._put(event, *args).add_done_callback(self._look)

    def ended(self, error: BaseException | None) -> None:
        """Waits until the reporter has received all events, at most `CLOSE_S`."""
        if not self._thread.is_alive():
            return
        self._put("ended", error).add_done_callback(self._look)
        self._put_nowait(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._fail(TimeoutError(f"not done {CLOSE_S:g} s after the end of the run"))

    def _put(self, event: str, *args: Any) -> Future[None]:
        future: Future[None] = Future()
        self._put_nowait((event, args, future))
        return future

    def _put_nowait(self, event: tuple[str, tuple[Any, ...], Future[None]] | None) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._fail(TimeoutError(f"{_MOST_WAITING} events wait for it"))

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            name, args, future = event
            try:
                getattr(self.inner, name)(*args)
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)

    def _look(self, done: Future[None]) -> None:
        if (error := done.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s failed, and the run goes on: %s", self.place, _line(error))


def _line(error: BaseException) -> str:
    text = " ".join(str(error).partition(REMEDY)[0].split())[:300]
    return f"{type(error).__name__}: {text}".removesuffix(": ")
