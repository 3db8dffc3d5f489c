"""`heartbeat.json`: what a run does now, written at most once a second while a process writes the run.

It replaces itself atomically, so a reader sees one state or the next, and it is not durable: it says nothing that the
records do not say once the run has ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentrl.store.info import replace

NAME = "heartbeat.json"

FORMAT = 1
"""Of the file. One of another format is not read."""


class Flight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An episode in flight.

    Attributes:
        stage: `sandbox`, `open`, `generate`, `tools`, `agent` (its own code), `score`, ..., or the name of the worker
            that plays it.
        since: Unix time at which it was first seen there.
        turns: number of turns so far; None: not known, as on a worker.
    """

    stage: str
    since: float
    turns: int | None = None


class Pulse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a run at one moment.

    Attributes:
        at: Unix time of the state.
        pid: the process that writes the run.
        started: Unix time at which it began to.
        phase: what it does: `episodes`, `iteration 3`, ...; "" before the first phase.
        phase_since: Unix time at which the phase began.
        done, total: episodes or steps of the phase.
        episodes: those in flight, by id.
        running, waiting: episodes that were begun, and that wait for a free place.
        sandboxes: counts of the pool (`ready`, `in_use`, `warm`, `failed`, ...); None: no pool.
        engines: a row for each engine: its name, and what it counts (`running` and `waiting` requests, its `servers`).
        ended: how the process ended: `finished`, or the error; None: it still runs, or was killed.
    """

    format: int = FORMAT
    at: float
    pid: int
    started: float
    phase: str = ""
    phase_since: float = 0.0
    done: int = 0
    total: int = 0
    episodes: dict[str, Flight] = {}
    running: int = 0
    waiting: int = 0
    sandboxes: dict[str, int] | None = None
    engines: list[dict[str, Any]] = []
    ended: str | None = None


def write_pulse(run: Path, pulse: Pulse) -> None:
    """Replaces the heartbeat of a run."""
    replace(run / NAME, msgspec.json.encode(pulse) + b"\n", durable=False)


def read_pulse(run: Path) -> Pulse | None:
    """The heartbeat of a run; None: it has none, or one that this version cannot read."""
    try:
        found = msgspec.json.decode((run / NAME).read_bytes(), type=Pulse)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.format == FORMAT else None
