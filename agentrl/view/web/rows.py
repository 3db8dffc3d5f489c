"""Episodes as rows: filtered and sorted by the index of the run, and by what the text index adds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from agentrl.store.codec import StoredCredit
from agentrl.store.index import CREDITED
from agentrl.types.errors import StoreError
from agentrl.view.summary import STAGE
from agentrl.view.web.library import Json, RunLibrary, ViewedRun
from agentrl.view.web.overview import sortable, stages_of
from agentrl.view.web.query import Query, RequestError
from agentrl.view.web.text_index import SCHEMA, WITH_WORDS, match

_COLUMNS = (
    *("id", "group_id", "task_id", "iteration", "split", "status", "stop", "attempt", "reward", "turns", "calls"),
    *("malformed", "unknown", "refused", "timeouts", "raised", "first_raised", "sampled_tokens", "drift", "branches"),
    *("contexts", "duration_s", "created_at", "answer", "error", "notes"),
    *CREDITED,
)
_SHOWN = 200
"""Characters of an answer in a row."""
_TRIED = 100
"""Episodes that are tried for the best or the worst turn: records of credit may be damaged."""

_EQUAL = {"group": "group_id = ?", "task": "instr(task_id, ?)", "id": "instr(id, ?)", "stage": f"{STAGE} = ?"}
_SEVERAL = {"split": "split", "status": "status", "stop": "stop", "error": "error"}
_RANGES = {
    "iteration": "iteration {} ?",
    "reward": "reward {} ?",
    "turns": "turns {} ?",
    "duration": "duration_s {} ?",
}
_OF_TEXTS = {
    "tool": f"id IN (SELECT id FROM {SCHEMA}.tool WHERE name = ?)",
    "version_min": f"id IN (SELECT id FROM {SCHEMA}.episode WHERE last >= ?)",
    "version_max": f"id IN (SELECT id FROM {SCHEMA}.episode WHERE first <= ?)",
    "q": f"id IN (SELECT id FROM {SCHEMA}.episode WHERE n IN ({WITH_WORDS}))",
}
"""Filters that need the text index."""


def episodes(library: RunLibrary, ask: Query) -> Json:
    """A page of the episodes that pass the filters of a request."""
    run = library.run(ask.needed("run"))
    offset, limit = ask.integer("offset", 0), ask.integer("limit", 50, at_most=500)
    ids = ordered(run, ask)
    return {
        "rows": rows_of(run, ids[offset : offset + limit]),
        "total": len(ids),
        "offset": offset,
        "index": msgspec.to_builtins(run.texts.progress()),
    }


def ordered(run: ViewedRun, ask: Query) -> Sequence[str]:
    """The ids of all episodes that pass the filters of a request, sorted."""
    conditions, values = _conditions(run, ask)
    order, more = _order(run, ask)
    chosen = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    # One row of JSON, kept as such: 50,000 rows would take ten times the time, and their strings four times the room.
    what = f"json_group_array(id) FROM (SELECT id FROM all_episodes e {chosen} ORDER BY {order}, id)"
    key = (what, *values, *more, run.texts.progress().done if SCHEMA + "." in what else 0)
    parts = ("episodes", "credit") if any(name in order for name in CREDITED) else ("episodes",)
    listed = run.cached(parts, key, lambda: str(run.reader.select(what, [*values, *more])[0][0]))
    return msgspec.json.decode(listed, type=list[str])


def _conditions(run: ViewedRun, ask: Query) -> tuple[list[str], list[Any]]:
    """SQL and values of the filters."""
    found: list[tuple[str, list[Any]]] = []
    for name, sql in _EQUAL.items():
        if (text := ask.text(name)) is not None:
            found.append((sql, [text]))
    for name, column in _SEVERAL.items():
        if given := ask.several(name):
            some = f"{column} IN ({', '.join('?' * len(given))})"
            found.append((f"{column} IS NOT NULL", []) if given == ["any"] else (some, given))
    for name, sql in _RANGES.items():
        for end, sign in (("min", ">="), ("max", "<=")):
            if (number := ask.number(f"{name}_{end}")) is not None:
                found.append((sql.format(sign), [number]))
    found += _of_texts(run, ask)
    return [sql for sql, _ in found], [value for _, values in found for value in values]


def _of_texts(run: ViewedRun, ask: Query) -> list[tuple[str, list[Any]]]:
    """The filters that need the text index."""
    found: list[tuple[str, list[Any]]] = []
    for name, sql in _OF_TEXTS.items():
        if (text := ask.text(name)) is not None:
            asked = match(text) if name == "q" else ask.number(name) if name.startswith("version") else text
            found.append((sql, [asked]) if asked != "" else ("0", []))
    if (component := ask.text("component")) is not None:
        least, most = ask.number("component_min"), ask.number("component_max")
        bounds = " AND value >= ?" * (least is not None) + " AND value <= ?" * (most is not None)
        sql = f"id IN (SELECT id FROM {SCHEMA}.component WHERE name = ? AND value IS NOT NULL{bounds})"
        found.append((sql, [value for value in (component, least, most) if value is not None]))
    if found and not run.texts.usable:
        raise RequestError(422, "this filter needs the text index", place=run.texts.problem)
    return found


def _order(run: ViewedRun, ask: Query) -> tuple[str, list[Any]]:
    """SQL and values of the order."""
    name, down = ask.text("sort") or "created_at", "DESC" if ask.text("desc") else "ASC"
    prefix, _, component = name.partition(".")
    if prefix == "components" and component and run.texts.usable:
        value = f"(SELECT value FROM {SCHEMA}.component c WHERE c.id = e.id AND c.name = ?)"
        return f"{value} {down} NULLS LAST", [component]
    if name not in sortable():
        raise RequestError(
            422, f"episodes cannot be sorted by {name!r}", remedy=f"sort by one of: {', '.join(sorted(sortable()))}"
        )
    return f"{name} {down} NULLS LAST", []


def rows_of(run: ViewedRun, ids: Sequence[str]) -> list[Json]:
    """The rows of episodes, in order."""
    if not ids:
        return []
    marks = f"IN ({', '.join('?' * len(ids))})"
    found = run.reader.select(f"{', '.join(_COLUMNS)} FROM all_episodes WHERE id {marks}", ids)
    rows = {row[0]: dict(zip(_COLUMNS, row, strict=True)) for row in found}
    more = _of_cache(run, marks, ids)
    for id, row in rows.items():
        row |= {"components": None, "tools": None, "versions": None} | more.get(id, {})
        row |= {"answer": _cut(row["answer"]), "first_raised": _cut(row["first_raised"]), "notes": _cut(row["notes"])}
    return [rows[id] for id in ids if id in rows]


def _of_cache(run: ViewedRun, marks: str, ids: Sequence[str]) -> dict[str, Json]:
    """Returns components, tools and versions of episodes, by the text index."""
    if not run.texts.usable:
        return {}
    found: dict[str, Json] = {}
    for id, first, last in run.reader.select(f"id, first, last FROM {SCHEMA}.episode WHERE id {marks}", ids):
        found[id] = {"components": {}, "tools": {}, "versions": None if first is None else [first, last]}
    for table, column in (("component", "value"), ("tool", "count")):
        for id, name, value in run.reader.select(f"id, name, {column} FROM {SCHEMA}.{table} WHERE id {marks}", ids):
            if id in found:
                found[id][f"{table}s"][name] = value
    return found


def credit_of(run: ViewedRun, id: str) -> StoredCredit | None:
    """The credit of an episode; None without one, or if its record is damaged."""
    try:
        return run.reader.credit(id)
    except StoreError:
        return None


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHOWN else text[:_SHOWN] + "..."


def facets(library: RunLibrary, ask: Query) -> Json:
    """The values that the episodes of a run have, for its filters."""
    run = library.run(ask.needed("run"))
    index = run.texts.progress()  # first: what is read later holds at least that much
    own = run.cached(("episodes",), "facets", lambda: _own_facets(run))
    turns = run.cached(("episodes", "credit"), "best and worst turn", lambda: extreme_turns(run))
    return {**own, **_text_facets(run), **turns, "index": msgspec.to_builtins(index)}


def extreme_turns(run: ViewedRun) -> Json:
    """The turns with the largest and the smallest advantage: episode, turn and advantage; None without credit."""
    return {"best_turn": _extreme(run, "advantage_max", max), "worst_turn": _extreme(run, "advantage_min", min)}


def _extreme(run: ViewedRun, column: str, of: Callable[..., float]) -> Json | None:
    """The turn at one end. A record that a later credit of its episode replaced, or a damaged one, is passed over."""
    order = f"ORDER BY {column} {'DESC' if of is max else 'ASC'}, id LIMIT {_TRIED}"
    found: Json | None = None
    for id, bound in run.reader.select(f"id, {column} FROM all_credit WHERE {column} IS NOT NULL {order}"):
        if found is not None and of(bound, found["advantage"]) == found["advantage"]:
            break  # the rest lies no further out
        credit = credit_of(run, id)
        value = of(credit.turn_advantages) if credit is not None and credit.turn_advantages else None
        if value is not None and credit is not None and (found is None or of(value, found["advantage"]) == value):
            found = {"id": id, "turn": credit.turn_advantages.index(value), "advantage": value}
    return found


def _own_facets(run: ViewedRun) -> Json:
    select = run.reader.select
    counted: Json = {
        name: dict(
            select(f"{name}, COUNT(*) FROM all_episodes WHERE {name} IS NOT NULL AND {name} != '' GROUP BY {name}")
        )
        for name in _SEVERAL
    }
    named = set(stages_of(run))
    stages = dict(select(f"{STAGE} AS stage, COUNT(*) FROM all_episodes GROUP BY stage")) if named else {}
    counted["stage"] = {name: count for name, count in stages.items() if name in named}
    ranges = ("iteration", "reward", "turns", "duration_s")
    counted["histogram"] = {name: _histogram(run, name) for name in ("reward", "turns", "duration_s")}
    ends = select(", ".join(f"MIN({name}), MAX({name})" for name in ranges) + " FROM all_episodes")[0]
    return counted | {name: _range(ends[2 * k : 2 * k + 2]) for k, name in enumerate(ranges)}


_BINS = 20


def _histogram(run: ViewedRun, name: str) -> list[tuple[float, float, int]]:
    """The distribution of a column over scored episodes: low and high end and number of each bin."""
    scored = f"all_episodes WHERE {name} IS NOT NULL AND status IN ('done', 'truncated')"
    ((low, high, count),) = run.reader.select(f"MIN({name}), MAX({name}), COUNT(*) FROM {scored}")
    if not count:
        return []
    if not (width := (high - low) / _BINS):
        return [(low, high, count)]
    place = f"MIN({_BINS - 1}, CAST(({name} - ?) / ? AS INTEGER))"
    counts = dict(run.reader.select(f"{place} AS place, COUNT(*) FROM {scored} GROUP BY place", (low, width)))
    return [(low + k * width, low + (k + 1) * width, counts.get(k, 0)) for k in range(_BINS)]


def _text_facets(run: ViewedRun) -> Json:
    if not run.texts.usable:
        return {"tools": None, "components": None, "versions": None}

    def read() -> Json:
        select = run.reader.select
        of_component = "name, COUNT(value), MIN(value), MAX(value), AVG(value)"
        components = select(f"{of_component} FROM {SCHEMA}.component GROUP BY name ORDER BY name")
        return {
            "tools": dict(select(f"name, COUNT(*) FROM {SCHEMA}.tool GROUP BY name ORDER BY 2 DESC, name LIMIT 200")),
            "components": {
                name: {"count": count, "min": least, "max": most, "mean": mean}
                for name, count, least, most, mean in components
            },
            "versions": _range(select(f"MIN(first), MAX(last) FROM {SCHEMA}.episode")[0]),
        }

    return run.cached((), ("text facets", run.texts.progress().done), read)


def _range(ends: Iterable[Any]) -> list[Any] | None:
    found = list(ends)
    return None if None in found else found


Endpoint = Callable[[RunLibrary, Query], Any]
