"""Accepted questions of a run as tasks: `tasks: {source: accepted, args: {run: runs/questions}}`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.store.run_dir import RunDir
from agentrl.types.paths import beside
from agentrl.types.task import Task


def tasks(run: str, base: Path) -> Iterator[Task]:
    """Yields a task for each episode whose question `synthesis_agent` accepted, in the order of their ids.

    Its data is that of the episode's task, the proposed `answer`, and `made_by`, the episode.

    Args:
        run: the run directory, relative to the recipe.
    """
    for episode in sorted(RunDir.read(Path(beside(run, base))).episodes(), key=lambda each: each.id):
        proposed = episode.info.get("proposed")
        if episode.scored and proposed and not episode.info.get("rejected"):
            data = {**episode.task.data, "answer": [proposed["answer"]], "made_by": episode.id}
            yield Task.of(f"made/{episode.id}", proposed["question"], **data)
