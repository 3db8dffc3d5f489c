"""Runs of a folder, and a run as a whole."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.store import heartbeat, rescored
from agentrl.store.index import CREDITED, SORTS
from agentrl.store.info import read_info
from agentrl.store.lines import read_lines
from agentrl.store.reader import RunReader
from agentrl.types.errors import AgentRLError
from agentrl.types.reporter import TRAINING, UNNAMED
from agentrl.view.live import activity
from agentrl.view.summary import STAGE, by_stage, progress, series, summarise
from agentrl.view.web.library import Json, RunLibrary, ViewedRun, parts_of, state_of
from agentrl.view.web.query import Query, RequestError
from agentrl.view.web.text_index import SCHEMA

Curve = Sequence[tuple[float, float]]

_SCREEN = {
    "success": ("success",),
    "reward": ("reward",),
    "turns": ("turns",),
    "length": ("tokens_per_episode",),
    "entropy": ("entropy",),
    "kl": ("kl_old", "kl_ref"),
    "gradient": ("grad_norm",),
    "loss": ("loss",),
    "staleness": ("staleness", "staleness_mean", "staleness_max"),
    "zero variance": ("zero_variance_groups",),
    "truncation": ("truncated",),
    "failures": ("failed",),
    "throughput": ("tokens_per_s", "episodes_per_minute", "rollout_s", "train_s"),
    "ratio": ("ratio_mean", "clip_fraction", "mismatch_mean"),
}
"""Panels of a stage, and the metrics that belong in them, each with the same of evaluations."""
_SUPERVISED = {"loss": ("loss",), "accuracy": ("accuracy",), "gradient": ("grad_norm",)}
"""Panels of a stage that imitates or ranks, as a warm start."""

_FIRST = (
    ("id", "episode", "name"),
    ("reward", "reward", "number"),
)
"""Columns before those of the reward components: name, title and kind."""
_COLUMNS = (
    ("advantage", "credit", "signed"),
    ("advantage_max", "best turn", "signed"),
    ("advantage_min", "worst turn", "signed"),
    ("status", "status", "text"),
    ("stop", "stop", "text"),
    ("turns", "turns", "count"),
    ("sampled_tokens", "tokens", "count"),
    ("duration_s", "duration", "duration"),
    ("iteration", "iteration", "count"),
    ("split", "split", "text"),
    ("created_at", "began", "time"),
    ("task_id", "task", "text"),
    ("answer", "answer", "text"),
    ("error", "failure", "text"),
    ("calls", "calls", "count"),
    ("group_id", "group", "text"),
)
"""Columns behind them."""
_IF_ANY = {
    "error": "error IS NOT NULL",
    "answer": "answer IS NOT NULL",
    "group_id": "instr(id, group_id || '#') != 1",
    **dict.fromkeys(CREDITED, "EXISTS (SELECT 1 FROM all_credit)"),
}
"""Columns that are left out unless an episode fits their condition: none failed, none answered, the name of each begins
with that of its group, none was credited."""
_FLIGHTS = 20
"""Episodes in flight that are sent."""
_LISTED = 100
"""Entries of a list of run.json that are sent."""


def runs(library: RunLibrary, ask: Query) -> Json:
    """The runs of the folder, the newest change first."""
    found = [_listed(library, key) for key in library.keys()]  # noqa: SIM118
    found.sort(key=lambda run: -(run["changed_at"] or 0.0))
    return {"folder": str(library.root), "single": library.single, "runs": found}


_listings: dict[Path, tuple[Any, Json]] = {}
"""Entry of each run of a folder, with the sizes and times of its parts for which it holds."""


def _listed(library: RunLibrary, key: str) -> Json:
    try:
        path = library.path_of(key)
    except RequestError as refused:
        return _problem(key, library.root / key, refused)
    parts = parts_of(path) | {"live": None}  # the heartbeat is in no entry
    held, known = _listings.get(path, (None, {}))
    if held != parts:
        try:
            known = _read(key, path)
        except (AgentRLError, OSError, ValueError) as error:
            known = _problem(key, path, error)
        _listings[path] = parts, known
    if known["problem"]:
        return known
    return {name: value for name, value in known.items() if name != "info"} | {"state": state_of(path, known["info"])}


def _read(key: str, path: Path) -> Json:
    info = read_info(path)
    with RunReader(path) as run:
        episodes = run.select("COUNT(*) FROM all_episodes")[0][0]
    lines = read_lines(path / "metrics.jsonl")
    curves = series(lines)
    shown = progress(curves)
    curve = curves[shown] if shown else []
    return {
        "key": key,
        "name": name_of(info, path),
        "path": str(path),
        "command": command_of(info),
        "state": "stopped",
        "created_at": info.get("created_at"),
        "changed_at": changed_at(path),
        "episodes": episodes,
        "iteration": last_iteration(lines),
        "shown": shown,
        "first": curve[0][1] if curve else None,
        "last": curve[-1][1] if curve else None,
        "curve": thinned(curve, 50),
        "problem": None,
        "info": {"finished": info.get("finished")},
    }


def _problem(key: str, path: Path, error: Exception) -> Json:
    unknown = dict.fromkeys(("command", "state", "created_at", "episodes", "iteration", "shown", "first", "last"))
    return {
        "key": key,
        "name": path.name,
        "path": str(path),
        **unknown,
        "changed_at": changed_at(path),
        "curve": [],
        "problem": told(error),
    }


def told(error: BaseException) -> Json:
    """An error for the page."""
    if isinstance(error, AgentRLError):
        return {"what": error.message, "place": error.place or "", "remedy": error.remedy or ""}
    if isinstance(error, OSError):
        return {"what": error.strerror or str(error), "place": str(error.filename or ""), "remedy": ""}
    return {"what": f"{type(error).__name__}: {error}", "place": "", "remedy": ""}


def head(library: RunLibrary, ask: Query) -> Json:
    """Recipe, versions, summary and state of a run, without its episodes."""
    run = library.run(ask.needed("run"))
    cursor, info, helpers = cursor_of(run), run.reader.info, library.helpers  # what comes later is news
    estimators = [{"name": each["name"], "does": each["does"]} for each in helpers.estimators()]
    credit = (info.get("recipe") or {}).get("credit") or {}
    return {
        "key": run.key,
        "name": name_of(info, run.path),
        "path": str(run.path),
        "id": run.reader.id,
        "command": command_of(info),
        "state": state_of(run.path, info),
        "created_at": info.get("created_at"),
        "changed_at": changed_at(run.path),
        "info": {name: _short(value) for name, value in info.items()},
        "summary": summary_of(run),
        "columns": columns_of(run),
        "stages": stages_of(run),
        "estimators": estimators,
        "estimator": credit.get("use") if isinstance(credit, Mapping) else None,
        "rescored": rescored.names(run.path),
        "damage": damage_of(run),
        "not_recorded": not_recorded(run),
        "live": live_of(run),
        "can": {
            "search": run.texts.usable,
            "recompute": helpers.recompute is not None and bool(estimators),
            "compare": not library.single,
            "text": True,
            "token_text": run.decoder(helpers) is not None,
        },
        "cursor": cursor,
    }


def _short(value: Any) -> Any:
    """A value of run.json as it is shown: a list as long as the run, such as the planned episodes, is counted."""
    return f"{len(value):,} entries" if isinstance(value, list) and len(value) > _LISTED else value


def summary_of(run: ViewedRun) -> Any:
    """The summary of a run."""
    return run.cached(
        ("episodes", "metrics", "failures"), "summary", lambda: msgspec.to_builtins(summarise(run.reader))
    )


def columns_of(run: ViewedRun) -> list[Json]:
    """Columns of the grid of episodes: name, title and kind; those of the reward components among them."""
    names: list[str] = []
    if run.texts.usable:
        names = [name for (name,) in run.reader.select(f"DISTINCT name FROM {SCHEMA}.component ORDER BY name")]
    empty = run.cached(("episodes", "credit"), "empty columns", lambda: _empty_columns(run))
    of_components = [(f"components.{name}", name, "number") for name in names]
    return [
        {"name": name, "title": title, "kind": kind}
        for name, title, kind in (*_FIRST, *of_components, *_COLUMNS)
        if name not in empty
    ]


def _empty_columns(run: ViewedRun) -> set[str]:
    """The columns of which no episode fits the condition."""
    return {
        name
        for name, condition in _IF_ANY.items()
        if not run.reader.select(f"1 FROM all_episodes WHERE {condition} LIMIT 1")
    }


def sortable() -> frozenset[str]:
    """Names of the columns of an index row that can sort episodes."""
    return frozenset(SORTS) - {"shard", "offset", "length", "opening"}


def metrics(library: RunLibrary, ask: Query) -> Json:
    """The metrics of a run as curves."""
    run = library.run(ask.needed("run"))
    points, stage = ask.integer("points", 1000, at_most=100_000), ask.text("stage")
    lines, curves = curves_of(run)
    if stage is not None:
        curves = {name: curve for name, curve in curves.items() if name.startswith(f"{stage}/")}
    supervised = {str(line.get("stage", UNNAMED)) for line in lines if line.get("split") in ("sft", "preference")}
    evaluations = sorted(
        {float(line["iteration"]) for line in lines if line.get("split") == "eval" and "iteration" in line}
    )
    return {
        "series": {name: thinned(curve, points) for name, curve in curves.items()},
        "shown": progress(curves),
        "screen": _panels(lines, curves, supervised),
        "supervised": sorted(supervised),
        "evaluations": evaluations,
        "iteration": last_iteration(lines),
        "lines": len(lines),
    }


def _panels(lines: Sequence[Mapping[str, Any]], curves: Collection[str], supervised: Collection[str]) -> Json:
    """The curves of each panel by its title: of reinforcement learning first, then of the stages that imitate. A title
    begins with the name of the stage, if that has one."""
    panels: Json = {}
    for stage in sorted(by_stage(lines), key=lambda stage: stage in supervised):
        prefix, title = ("", "") if stage == UNNAMED else (f"{stage}/", f"{stage}: ")
        wanted = _SUPERVISED if stage in supervised else _SCREEN
        found = {
            title + panel: [prefix + before + name for name in names for before in ("", "eval/")]
            for panel, names in wanted.items()
        }
        found[f"{title}rewards"] = [name for name in curves if name.startswith(f"{prefix}rewards/")]
        panels |= {panel: [name for name in names if name in curves] for panel, names in found.items()}
    return {panel: names for panel, names in panels.items() if names}


def curves_of(run: ViewedRun) -> tuple[list[Json], dict[str, list[tuple[float, float]]]]:
    """The lines of metrics of a run, and its curves."""

    def read() -> tuple[list[Json], dict[str, list[tuple[float, float]]]]:
        lines = run.reader.metrics()
        return lines, series(map(_by_episode, lines))

    return run.cached(("metrics",), "curves", read)


def _by_episode(line: Json) -> Json:
    """Adds the sampled tokens of a scored episode, so that batches of different sizes can be compared."""
    tokens, scored = line.get("sampled_tokens"), line.get("episodes", 0) - line.get("failed", 0)
    return line if tokens is None or scored <= 0 else {**line, "tokens_per_episode": tokens / scored}


def updates(library: RunLibrary, ask: Query) -> Json:
    """Names the parts of a run that have changed since a cursor."""
    run = library.run(ask.needed("run"))
    before = dict(part.partition(":")[::2] for part in (ask.text("cursor") or "").split("."))
    now = _marks(run)
    return {
        "cursor": cursor_of(run),
        "state": state_of(run.path, run.reader.info),
        "changed": [part for part, mark in now.items() if before.get(part) != mark],
        "episodes": run.reader.select("COUNT(*) FROM all_episodes")[0][0],
        "iteration": last_iteration(curves_of(run)[0]),
        "index": msgspec.to_builtins(run.texts.progress()),
        "live": live_of(run),
    }


def cursor_of(run: ViewedRun) -> str:
    """State of the parts of a run, for `updates` to compare with."""
    return ".".join(f"{part}:{mark}" for part, mark in _marks(run).items())


def _marks(run: ViewedRun) -> dict[str, str]:
    marks = {part: f"{hash(seen) & 0xFFFFFFFFFFFF:x}" for part, seen in run.seen.items()}
    progress = run.texts.progress()
    return marks | {"index": f"{progress.state}{progress.done}", "damage": str(len(damage_of(run)))}


def damage_of(run: ViewedRun) -> list[str]:
    """Places of the unreadable records: those that the reader came upon, and episodes that the text index could not
    read, which an index row still lists."""
    lost = (place.removeprefix(f"{run.path}/") for place in list(run.texts.unreadable.values()))
    return list(dict.fromkeys([*run.reader.damage, *lost]))


def live_of(run: ViewedRun) -> Json | None:
    """Activity of a run: its phase, and the episodes in flight that have been in their stage for the longest; None: it
    writes no heartbeat.
    """
    now = activity(run.reader, time.time())
    if now.pulse is None:
        return None
    flights = [msgspec.to_builtins(flight) | {"id": id} for id, flight, _ in now.flights[:_FLIGHTS]]
    return {
        "at": now.pulse.at,
        "phase": now.pulse.phase,
        "done": now.pulse.done,
        "total": now.pulse.total,
        "state": now.state,
        "working": now.working,
        "stages": now.stages,
        "flights": flights,
        "parts": now.parts,
    }


def not_recorded(run: ViewedRun) -> list[str]:
    """Names of what a screen shows and the record of this run lacks."""
    _, curves = curves_of(run)
    names = {name.rpartition("/")[2] for name in curves}
    lacking = [title for title, wanted in _SCREEN.items() if not names & {name.rpartition("/")[2] for name in wanted}]
    return lacking + ["live"] * (live_of(run) is None)


def stages_of(run: ViewedRun) -> list[str]:
    """Names of the stages that hold episodes, in order of their beginning; none if they have no names."""
    named = f"{STAGE} AS stage, MIN(created_at) FROM all_episodes GROUP BY stage ORDER BY 2"
    return run.cached(("episodes",), "stages", lambda: [stage for stage, _ in run.reader.select(named) if stage])


def thinned(curve: Curve, most: int) -> list[tuple[float, float]]:
    """Returns at most about `most` points of a curve: the first and the last one, and the extremes of each part."""
    if len(curve) <= max(most, 4):
        return list(curve)
    size = 2 * len(curve) / most
    parts: dict[int, list[tuple[float, float]]] = {}
    for at, point in enumerate(curve[1:-1]):
        parts.setdefault(int(at / size), []).append(point)
    kept = {curve[0], curve[-1]}
    for part in parts.values():
        kept |= {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
    return sorted(kept)


def last_iteration(lines: Sequence[Mapping[str, Any]]) -> int | None:
    """The last iteration of the reinforcement learning, or, without any, of the last stage; None: there is none."""
    trained = [line for line in lines if line.get("split", "train") in TRAINING and "iteration" in line]
    last = [line for line in trained if line.get("split", "train") == "train"] or trained
    return int(last[-1]["iteration"]) if last else None


def name_of(info: Mapping[str, Any], path: Path) -> str:
    """The name of a run: that of its recipe, else of its folder."""
    recipe = info.get("recipe")
    return str((recipe.get("name") if isinstance(recipe, Mapping) else None) or path.resolve().name)


def command_of(info: Mapping[str, Any]) -> str:
    """The command that wrote a run."""
    argv = [str(word) for word in info.get("argv") or ()]
    return (
        " ".join([Path(argv[0]).name.replace("cli.py", "agentrl").replace("__main__.py", "agentrl"), *argv[1:]])
        if argv
        else ""
    )


def changed_at(path: Path) -> float | None:
    """Time of the last change of a run."""
    times = []
    for name in (
        "run.json",
        "metrics.jsonl",
        "failures.jsonl",
        "index.sqlite",
        "index.sqlite-wal",
        "episodes",
        heartbeat.NAME,
    ):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)
