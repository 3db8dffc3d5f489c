"""Activity of a run, in words and numbers, from its heartbeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.store.heartbeat import Flight, Pulse, read_pulse
from agentrl.store.lock import is_held
from agentrl.store.reader import RunReader

STALE_S = 10.0
"""Seconds without a heartbeat after which a process counts as silent."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of a run at one moment.

    Attributes:
        state: in a line; `working`: a process writes the run, and says so.
        stages: number of episodes in flight by stage, the most frequent first.
        flights: the episodes in flight, those first that have been in their stage for the longest, with the seconds.
        parts: lines about the queue, sandboxes and engines.
        pulse: the heartbeat that this was read from; None: the run has none.
    """

    state: str
    working: bool
    stages: dict[str, int]
    flights: list[tuple[str, Flight, float]]
    parts: list[str]
    pulse: Pulse | None = None


def activity(run: RunReader, now: float) -> Activity:
    """Reads the heartbeat of a run.

    Args:
        now: Unix time.
    """
    pulse, written = read_pulse(run.path), is_held(run.path / "lock")
    working = pulse is not None and pulse.ended is None and written
    if pulse is None or not working:
        return Activity(state=_at_rest(pulse, written), working=False, stages={}, flights=[], parts=[], pulse=pulse)
    flights = [(id, flight, max(0.0, now - flight.since)) for id, flight in pulse.episodes.items()]
    stages = Counter(flight.stage for flight in pulse.episodes.values())
    return Activity(
        state=_at_work(pulse, now),
        working=True,
        stages=dict(stages.most_common()),
        flights=sorted(flights, key=lambda each: (-each[2], each[0])),
        parts=_parts(pulse),
        pulse=pulse,
    )


def pace(done: int, total: int, seconds: float) -> list[str]:
    """Formats progress: `12/64`, its rate, and the time that is left, from a twentieth on. Total 0: unknown."""
    rate = done / seconds if seconds > 0 else 0.0
    told = [
        f"{done}/{total}" if total else f"{done}",
        f"{rate:.1f}/s" if rate >= 1 or not rate else f"{60 * rate:.1f}/min",
    ]
    known = rate and done < total <= 20 * done  # The first results come late: their rate says little.
    return [*told, f"{duration((total - done) / rate)} left"] if known else told


def duration(seconds: float) -> str:
    """A duration as 0:07, 12:30 or 3:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _at_rest(pulse: Pulse | None, written: bool) -> str:
    if pulse is None:
        return "being written; no heartbeat is recorded" if written else "not being written; no heartbeat is recorded"
    if pulse.ended is not None:
        return f"ended: {pulse.ended}"
    return f"its process {pulse.pid} ended without a word (killed?) in the phase {pulse.phase or 'start'!r}"


def _at_work(pulse: Pulse, now: float) -> str:
    if now - pulse.at > STALE_S:
        return f"no heartbeat for {duration(now - pulse.at)}: process {pulse.pid} is suspended, or very busy"
    return "  ".join([pulse.phase or "starts", *pace(pulse.done, pulse.total, pulse.at - pulse.phase_since)])


def _parts(pulse: Pulse) -> list[str]:
    lines = [f"queue: {pulse.running} begun, {pulse.waiting} wait for a place"]
    if pulse.sandboxes is not None:
        now = ("in_use", "warm")
        told = {name: pulse.sandboxes.get(name, 0) for name in now} | pulse.sandboxes
        lines.append("sandboxes: " + (_counted(told) or "none"))
    for engine in pulse.engines:
        servers = engine.get("servers") or []
        known = {name: value for name, value in engine.items() if name not in ("name", "servers")}
        lines.append(f"engine {engine.get('name', '?')}" + (f": {_counted(known)}" if known else ""))
        lines += [f"  {_server(server)}" for server in servers]
    return lines


def _counted(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items() if value)


def _server(server: Mapping[str, Any]) -> str:
    troubles = [f"{server['failures']} failures in succession"] if server.get("failures") else []
    troubles += [str(server["why_not"])] if server.get("why_not") else []
    return "; ".join([f"{server.get('url')}: {server.get('running')} running", *troubles])
