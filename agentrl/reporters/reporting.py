"""Reports the start and the end of a run, and keeps its heartbeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentrl.reporters.heartbeat import HeartbeatWriter
from agentrl.reporters.relay import Several
from agentrl.reporters.terminal import SLOW_S, Terminal
from agentrl.store.reader import RunReader
from agentrl.types.reporter import Reporter, RunStart, working_for


@contextmanager
def reporting(run: RunReader, *reporters: Reporter) -> Iterator[Reporter]:
    """Reports to reporters, and in the run's heartbeat, that a run starts, and how it ends.

    Raises:
        AgentRLError: a reporter cannot start.
    """
    told = Several([HeartbeatWriter(), *reporters])
    try:
        told.started(run_start(run))
        with working_for(told):
            yield told
    except BaseException as error:
        told.ended(error)
        raise
    told.ended(None)


@contextmanager
def preparing(reporters: Sequence[Reporter] | None) -> Iterator[None]:
    """Shows in the terminal how far long work is that comes before a run, for example on the index of its tasks.

    Args:
        reporters: of the run. They are told nothing, since the run has not started; None: the terminal.
    """
    if reporters is not None:
        yield
        return
    shown = Terminal(after_s=SLOW_S)
    try:
        with working_for(shown):
            yield
    finally:
        shown.ended(None)


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
