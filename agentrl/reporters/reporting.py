"""Reports the start and the end of a run, and keeps its heartbeat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.reporters.heartbeat import HeartbeatWriter
from agentrl.reporters.relay import Several
from agentrl.store.reader import RunReader
from agentrl.types.reporter import Reporter, RunStart


@contextmanager
def reporting(run: RunReader, *reporters: Reporter) -> Iterator[Reporter]:
    """Reports to reporters, and in the run's heartbeat, that a run starts, and how it ends.

    Raises:
        AgentRLError: a reporter cannot start.
    """
    told = Several([HeartbeatWriter(), *reporters])
    try:
        told.started(run_start(run))
        yield told
    except BaseException as error:
        told.ended(error)
        raise
    told.ended(None)


def run_start(run: RunReader) -> RunStart:
    """The description of a run for reporters."""
    return RunStart(
        path=run.path,
        id=run.id,
        name=run.info["recipe"]["name"],
        command=run.info["command"],
        recipe=run.info["recipe"],
        continues=bool(run.rows(limit=1)),
        history=run.metrics(),
    )
