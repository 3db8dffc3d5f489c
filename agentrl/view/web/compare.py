"""Comparison of two runs, and the credit of a group under another estimator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.types.errors import nearest
from agentrl.view.summary import progress
from agentrl.view.web.library import Json, RunLibrary, ViewedRun
from agentrl.view.web.overview import curves_of, name_of, thinned
from agentrl.view.web.query import Query, RequestError
from agentrl.view.web.rows import credit_of
from agentrl.view.web.text_index import SCHEMA

_TASKS = 2000
_POINTS = 300


def compare(library: RunLibrary, ask: Query) -> Json:
    """Two runs: tasks won and lost, metrics, and what differs in their recipes."""
    a, b, split = library.run(ask.needed("run")), library.run(ask.needed("with")), ask.text("split")
    both = all(run.texts.usable and run.texts.progress().state == "ready" for run in (a, b))
    of_a, of_b = _tasks(a, split, both), _tasks(b, split, both)
    by = "success" if any(each["success"] is not None for each in (*of_a.values(), *of_b.values())) else "reward"
    tasks = [_task(id, of_a.get(id), of_b.get(id), by) for id in {**of_a, **of_b}]
    won = Counter(task["won"] or ("only_a" if task["a"] else "only_b") for task in tasks)
    tasks.sort(key=lambda task: (-abs(task["difference"] or 0.0), task["task_id"]))
    curves_a, curves_b = curves_of(a)[1], curves_of(b)[1]
    return {
        "a": _side(a, curves_a),
        "b": _side(b, curves_b),
        "config": list(_differences(a.reader.info.get("recipe"), b.reader.info.get("recipe"))),
        "tasks": tasks[:_TASKS],
        "won": {name: won[name] for name in ("a", "b", "tie", "only_a", "only_b")},
        "by": by,
        "metrics": {
            name: {"a": thinned(curves_a.get(name, []), _POINTS), "b": thinned(curves_b.get(name, []), _POINTS)}
            for name in {**curves_a, **curves_b}
        },
        "splits": sorted({*_splits(a), *_splits(b)}),
    }


def _tasks(run: ViewedRun, split: str | None, with_success: bool) -> dict[str, Json]:
    """Mean reward and success of each task, over its scored episodes."""
    success, joined = (
        ("AVG(t.success)", f"LEFT JOIN {SCHEMA}.episode t ON t.id = e.id") if with_success else ("NULL", "")
    )
    of_split = "AND e.split = ?" if split else ""
    found = run.reader.select(
        f"e.task_id, COUNT(*), AVG(e.reward), {success} FROM all_episodes e {joined} "
        f"WHERE e.status IN ('done', 'truncated') AND e.reward IS NOT NULL {of_split} GROUP BY e.task_id",
        [split] if split else [],
    )
    return {id: {"n": n, "reward": reward, "success": share} for id, n, reward, share in found}


def _task(id: str, a: Json | None, b: Json | None, by: str) -> Json:
    of_a, of_b = (None if each is None else each[by] for each in (a, b))
    difference = None if of_a is None or of_b is None else of_b - of_a
    won = None if difference is None else "tie" if abs(difference) < 1e-9 else "b" if difference > 0 else "a"
    return {"task_id": id, "a": a, "b": b, "won": won, "difference": difference}


def _side(run: ViewedRun, curves: Mapping[str, list[tuple[float, float]]]) -> Json:
    shown = progress(curves)
    return {
        "key": run.key,
        "name": name_of(run.reader.info, run.path),
        "episodes": run.reader.select("COUNT(*) FROM all_episodes")[0][0],
        "shown": shown,
        "last": curves[shown][-1][1] if shown else None,
    }


def _splits(run: ViewedRun) -> list[str]:
    return [split for (split,) in run.reader.select("DISTINCT split FROM all_episodes")]


def _differences(a: Any, b: Any, path: str = "") -> Iterator[Json]:
    """The values of two recipes that differ, by their path."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted({**a, **b}):
            yield from _differences(a.get(name), b.get(name), f"{path}.{name}" if path else str(name))
    elif a != b:
        yield {"path": path, "a": a, "b": b}


def credit(library: RunLibrary, ask: Query) -> Json:
    """The credit of a group under a built-in estimator, and the stored one."""
    run = library.run(ask.needed("run"))
    recompute = library.helpers.recompute
    known = [each["name"] for each in library.helpers.estimators()]
    estimator = ask.needed("estimator")
    if recompute is None or estimator not in known:  # code of a run is never imported
        raise RequestError(422, f"{estimator[:200]!r} is no built-in estimator", remedy=nearest(estimator, known))
    group = ask.text("group") or _group_of(run, ask.needed("id"))
    found = recompute(run.reader, group, estimator)
    stored = {id: credit_of(run, id) for id in found["credits"]}
    return found | {
        "stored": {
            id: None
            if one is None
            else {"estimator": one.estimator, "turn_advantages": one.turn_advantages, "parts": one.parts}
            for id, one in stored.items()
        }
    }


def _group_of(run: ViewedRun, id: str) -> str:
    found = run.reader.select("group_id FROM all_episodes WHERE id = ?", [id])
    if not found:
        raise RequestError(404, f"no episode {id!r}", place=str(run.path))
    return str(found[0][0])
