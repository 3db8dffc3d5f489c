"""Checks that the episodes of a group had the same opening prompt, and the declared tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.store.reader import RunReader
from agentrl.types.episode import Episode
from agentrl.types.figures.openings import offers_nothing, opening_of, parting, speaker_in

REMEDY = (
    "draw from task.seed or task.data what the environment draws before its first turn, or say `openings: differ` in "
    "the recipe if this is meant"
)


class Openings:
    """Compares the openings of a run's episodes, one after another.

    Args:
        indexed: episodes already in the run's index come before the given ones.
    """

    def __init__(self, run: RunReader, *, indexed: bool = False) -> None:
        self._run, self._indexed = run, indexed and bool(run.rows(limit=1))
        self._first: dict[str, dict[str, tuple[str, str]]] = {}  # group -> speaker -> mark and id of the first
        self._told: set[str] = set()

    def problem(self, episode: Episode) -> str | None:
        """Returns the difference between the opening of a stored episode and earlier ones of its group, once per group.
        None: no difference."""
        opening, group = opening_of(episode), episode.group_id
        if opening is None or group in self._told or (self._run.info.get("recipe") or {}).get("openings") == "differ":
            return None
        mark = opening.mark
        first, id = self._of_group(group).setdefault(speaker_in(mark), (mark, episode.id))
        if first == mark:
            return None
        self._told.add(group)
        other = opening_of(self._run.get(id))
        assert other is not None
        return (
            f"group {group} is not one task: {environment_of(self._run.info)} opened {id} and {episode.id} otherwise: "
            f"{parting(other, opening)}"
        )

    def _of_group(self, group: str) -> dict[str, tuple[str, str]]:
        known = self._first.get(group)
        if known is None:
            rows = self._run.rows(group_id=group) if self._indexed else []
            known = {speaker_in(row.opening): (row.opening, row.id) for row in reversed(rows) if row.opening}
            if len(self._first) >= _MOST:
                self._first.pop(next(iter(self._first)))
            self._first[group] = known
        return known


_MOST = 10_000
"""Maximum number of remembered groups; fewer are in flight at a time."""


def environment_of(info: Mapping[str, Any]) -> str:
    """Names the source of the opening of a run's episodes: its guest, its tools, or its agent."""
    recipe = info.get("recipe") or {}
    tasks, agent = recipe.get("tasks") or {}, (recipe.get("agent") or {}).get("use", "the agent")
    if tasks.get("source") == "guest":
        return f"the environment {(tasks.get('args') or {}).get('kind')}"
    tools = [str(each.get("use")) for each in recipe.get("tools") or ()]
    return f"the environment {', '.join(tools)}" if tools else f"the agent {agent}"


def lacks_tools(episode: Episode, info: Mapping[str, Any]) -> bool:
    """Returns True if an episode had no tools, although its task, its guest or the recipe declares some."""
    task = episode.task
    guest = task.data.get("guest")
    guested = bool(guest.get("declares")) if isinstance(guest, dict) else False
    declared = bool(info.get("tools") or guested) if task.tools is None else bool(task.tools)
    return declared and bool(episode.own_turns) and offers_nothing(episode)
