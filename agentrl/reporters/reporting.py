"""Telling reporters how a run begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.config.recipe import Recipe
from agentrl.reporters.relay import Several
from agentrl.store.run_dir import RunDir
from agentrl.types.reporter import Reporter, RunStart


@contextmanager
def reporting(run: RunDir, recipe: Recipe, *reporters: Reporter) -> Iterator[Reporter]:
    """Tells reporters that a run begins and how it ends.

    Raises:
        AgentRLError: one of them cannot begin.
    """
    told = Several(reporters)
    try:
        told.started(run_start(run, recipe))
        yield told
    except BaseException as error:
        told.ended(error)
        raise
    told.ended(None)


def run_start(run: RunDir, recipe: Recipe) -> RunStart:
    """What reporters are told of a run as it begins."""
    return RunStart(
        path=run.path,
        id=run.id,
        name=recipe.name,
        command=run.info["command"],
        recipe=run.info["recipe"],
        continues=bool(run.rows(limit=1)),
        history=run.metrics(),
    )
