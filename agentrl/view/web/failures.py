"""Failures of a run, its slowest and longest episodes, and the ones in flight."""

from __future__ import annotations

from agentrl.types.errors import StoreError
from agentrl.view.summary import failure_line
from agentrl.view.web.library import Json, RunLibrary, ViewedRun
from agentrl.view.web.overview import live_of, summary_of
from agentrl.view.web.query import Query
from agentrl.view.web.rows import rows_of

_ATTEMPTS = 200
_EPISODES = 50
_EXTREMES = 20


def failures(library: RunLibrary, ask: Query) -> Json:
    """The failures of a run by class, the last attempts that failed, and its extremes."""
    run = library.run(ask.needed("run"))
    attempts = run.cached(("failures",), "failures", run.reader.failures)
    summary = summary_of(run)
    return {
        "classes": _classes(run, attempts),
        "attempts": attempts[: -_ATTEMPTS - 1 : -1],
        "attempts_total": len(attempts),
        "slowest": _extremes(run, "duration_s"),
        "longest": _extremes(run, "turns"),
        "zero": run.reader.select("COUNT(*) FROM all_episodes WHERE reward = 0")[0][0],
        "notes": summary["notes"],
        "calls": summary["bad_calls"],
        "raised": summary["raised"],
        "live": live_of(run),
    }


def _classes(run: ViewedRun, attempts: list[Json]) -> list[Json]:
    """Failures by kind: episodes that ended in one, and attempts that were repeated."""
    classes: dict[str, Json] = {}

    def of(kind: str) -> Json:
        empty = {"kind": kind, "count": 0, "message": "", "place": "", "stage": "", "first_at": None, "last_at": None}
        return classes.setdefault(kind, {**empty, "episodes": []})

    for id, kind, at in run.reader.select(
        "id, error, created_at FROM all_episodes WHERE error IS NOT NULL ORDER BY created_at"
    ):
        one = of(kind)
        _count(one, id, at)
    for entry in attempts:
        one = of(str(entry.get("kind", "unknown")))
        if not one["message"]:
            one |= {"message": failure_line(entry)} | {name: str(entry.get(name, "")) for name in ("place", "stage")}
        if not entry.get("final"):  # a final one is that of an episode
            _count(one, str(entry.get("episode", "")), entry.get("at"))
    for one in classes.values():
        if not one["message"] and one["episodes"]:
            damaged: list[StoreError] = []  # the damage is told with the run
            for episode in run.reader.episodes(one["episodes"][:1], damaged=damaged):
                if episode.error is not None:
                    one |= {"message": episode.error.line, "place": episode.error.place, "stage": episode.error.stage}
    return sorted(classes.values(), key=lambda one: -one["count"])


def _count(one: Json, id: str, at: float | None) -> None:
    one["count"] += 1
    if id and id not in one["episodes"] and len(one["episodes"]) < _EPISODES:
        one["episodes"].append(id)
    if at is not None:
        one["first_at"] = at if one["first_at"] is None else min(one["first_at"], at)
        one["last_at"] = at if one["last_at"] is None else max(one["last_at"], at)


def _extremes(run: ViewedRun, column: str) -> list[Json]:
    """The episodes with the largest values of a column, demonstrations aside."""
    found = run.reader.select(
        f"id FROM all_episodes WHERE split <> 'demo' ORDER BY {column} DESC, id LIMIT {_EXTREMES}"
    )
    return rows_of(run, [id for (id,) in found])
