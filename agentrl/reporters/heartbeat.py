"""Writes the heartbeat of a run: what it does now, for `agentrl top` and other displays in other processes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import msgspec

from agentrl.store.heartbeat import Flight, Pulse, write_pulse
from agentrl.types.episode import Episode
from agentrl.types.reporter import Reporter, RunStart

EVERY_S = 1.0
"""Seconds between two writes."""


class HeartbeatWriter(Reporter):
    """Writes `heartbeat.json` once a second, in a thread of its own, and marks it as ended with the run.

    It costs the rollouts a dictionary entry for each stage of an episode. All else is read when the file is written, of
    what is there anyway. A file that cannot be written is left out: the run goes on.

    Args:
        clock: gives Unix time.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._path = Path()
        self._started = 0.0
        self._phase: tuple[str, float, int] = ("", 0.0, 0)
        self._done = 0
        self._stages: dict[str, str] = {}
        self._seen: dict[str, Flight] = {}
        self._reads: dict[str, dict[WeakMethod[Callable[[], Any]], None]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)

    def started(self, run: RunStart) -> None:
        self._path, self._started = run.path, self._clock()
        self._write()
        self._thread.start()

    def ended(self, error: BaseException | None) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._stages.clear()
        self._write("finished" if error is None else _told(error))

    def phase(self, name: str, total: int) -> None:
        self._phase, self._done = (name, self._clock(), total), 0

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        self._done = done

    def episode_stage(self, episode_id: str, stage: str | None) -> None:
        if stage is None:
            self._stages.pop(episode_id, None)
        else:
            self._stages[episode_id] = stage

    def episode(self, episode: Episode) -> None:
        self._done += not episode.forked

    def watch(self, kind: str, read: Callable[[], Any]) -> None:
        self._reads.setdefault(kind, {})[WeakMethod(read)] = None

    def pulse(self, ended: str | None = None) -> Pulse:
        """The state now."""
        now, (phase, since, total) = self._clock(), self._phase
        queues = [*self._values("queue")]
        sandboxes = [*self._values("sandboxes")]
        return Pulse(
            at=now,
            pid=os.getpid(),
            started=self._started,
            phase=phase,
            phase_since=since,
            done=self._done,
            total=total,
            episodes=self._flights(now),
            running=sum(queue["running"] for queue in queues),
            waiting=sum(queue["waiting"] for queue in queues),
            sandboxes={name: sum(each[name] for each in sandboxes) for name in sandboxes[0]} if sandboxes else None,
            engines=[*self._values("engine")],
            ended=ended,
        )

    def _flights(self, now: float) -> dict[str, Flight]:
        """The episodes in flight. Their conversations say more than the stage `agent`, and how many turns there are."""
        inside: dict[str, tuple[str, int]] = {}
        for conversations in self._values("conversations"):
            inside |= conversations
        found: dict[str, Flight] = {}
        for id, stage in self._stages.copy().items():
            within, turns = inside.get(id, (stage, None))
            at, before = within if stage == "agent" else stage, self._seen.get(id)
            same = before is not None and (before.stage, before.turns) == (at, turns)
            found[id] = before if same and before is not None else Flight(stage=at, since=now, turns=turns)
        self._seen = found
        return found

    def _values(self, kind: str) -> Iterator[Any]:
        """Yields the values of a kind, as JSON values. A part that is gone, or cannot be read, is left out."""
        reads = self._reads.get(kind, {})
        for reference in [*reads]:
            if (read := reference()) is None:
                reads.pop(reference, None)
                continue
            with contextlib.suppress(Exception):  # code of users: an engine of their own
                yield msgspec.json.decode(msgspec.json.encode(read()))

    def _write(self, ended: str | None = None) -> None:
        with contextlib.suppress(OSError):
            write_pulse(self._path, self.pulse(ended))

    def _work(self) -> None:
        while not self._end.wait(EVERY_S):
            self._write()


def _told(error: BaseException) -> str:
    return "stopped" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}".partition("\n")[0]
