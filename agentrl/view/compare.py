"""Two runs side by side: what differs in their configuration, which tasks either did better, and their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.types.errors import StoreError, nearest
from agentrl.types.values import leaves
from agentrl.view.summary import named_split, series, summarise

_ABOUT = ("command", "script", "replay", "from_run", "group_size", "code", "data", "versions", "git")
"""Keys of `run.json`, apart from the recipe, that say what was run."""

_FIRST = ("eval", "rollout", "train")
"""Splits in which tasks are compared, the most telling first."""


class ChangedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A key with different values in two runs; None: absent."""

    key: str
    a: Any
    b: Any


class TaskPair(msgspec.Struct, frozen=True, kw_only=True):
    """A task that both runs have scored: mean reward and number of episodes in each."""

    task: str
    a: float
    b: float
    episodes_a: int
    episodes_b: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs, A and B.

    Attributes:
        settings: the keys of recipe, command, code, versions and commit that differ.
        split: that of the compared tasks; None: the runs have no scored task in common.
        tasks: the largest difference first.
        won, lost, tied: number of tasks in which the mean reward of B is higher, lower, equal.
        counts: of the summaries, by name: (A, B).
        metrics: the last value of each metric, by name: (A, B); None: a run does not have it.
    """

    settings: list[ChangedSetting]
    split: str | None
    tasks: list[TaskPair]
    won: int
    lost: int
    tied: int
    counts: dict[str, tuple[float | None, float | None]]
    metrics: dict[str, tuple[float | None, float | None]]


def compare(a: RunReader, b: RunReader, split: str | None = None) -> Comparison:
    """Compares two runs. Of evaluations, only the last one of each run counts.

    Args:
        split: that of the tasks to compare; default: the first of evaluation, rollout and training in which both runs
            have scored the same task.

    Raises:
        StoreError: one of the runs has no episode of the split.
    """
    scored = _scored(a.rows()), _scored(b.rows())
    if split is not None:
        for run, found in zip((a, b), scored, strict=True):
            if split not in found:
                remedy = nearest(split, found) if found else "agentrl show RUN lists what it holds"
                raise StoreError(f"has no scored episode of the split {split!r}", place=str(run.path), remedy=remedy)
    shared = [name for name in scored[0] if name in scored[1] and scored[0][name].keys() & scored[1][name].keys()]
    chosen = split or min(shared, key=lambda name: (_place(name), name), default=None)
    tasks = [] if chosen is None else _pairs(scored[0][chosen], scored[1][chosen])
    return Comparison(
        settings=_settings(a.info, b.info),
        split=chosen,
        tasks=tasks,
        won=sum(each.b > each.a for each in tasks),
        lost=sum(each.b < each.a for each in tasks),
        tied=sum(each.b == each.a for each in tasks),
        counts=_beside(_counts(a), _counts(b)),
        metrics=_beside(_last(a), _last(b)),
    )


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ChangedSetting]:
    one, other = _about(a), _about(b)
    keys = dict.fromkeys([*one, *other])
    return [ChangedSetting(key=key, a=one.get(key), b=other.get(key)) for key in keys if one.get(key) != other.get(key)]


def _about(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was run, by dotted key: the recipe's keys as they are named in a recipe."""
    recipe = info.get("recipe")
    beside = {key: info[key] for key in _ABOUT if info.get(key) is not None}
    return dict(leaves(recipe if isinstance(recipe, dict) else {})) | dict(leaves(beside))


def _scored(rows: Iterable[EpisodeRow]) -> dict[str, dict[str, list[float]]]:
    """Rewards by split and task."""
    data = [row for row in rows if row.status in ("done", "truncated") and row.reward is not None]
    last: dict[str, int] = {}
    for row in data:
        last[named_split(row)] = max(row.iteration, last.get(named_split(row), 0))
    found: dict[str, dict[str, list[float]]] = {}
    for row in data:
        name = named_split(row)
        if row.split != "demo" and (row.split != "eval" or row.iteration == last[name]):
            found.setdefault(name, {}).setdefault(row.task_id, []).append(row.reward or 0.0)
    return found


def _place(name: str) -> int:
    split = name.rpartition("/")[2]
    return _FIRST.index(split) if split in _FIRST else len(_FIRST)


def _pairs(a: Mapping[str, list[float]], b: Mapping[str, list[float]]) -> list[TaskPair]:
    pairs = [
        TaskPair(
            task=task,
            a=sum(a[task]) / len(a[task]),
            b=sum(b[task]) / len(b[task]),
            episodes_a=len(a[task]),
            episodes_b=len(b[task]),
        )
        for task in a.keys() & b.keys()
    ]
    return sorted(pairs, key=lambda pair: (-abs(pair.b - pair.a), pair.task))


def _counts(run: RunReader) -> dict[str, float]:
    summary = summarise(run)
    counts: dict[str, float] = {"episodes": summary.episodes, "failed": summary.failed}
    for name, split in summary.splits.items():
        counts |= {f"{name}/episodes": split.episodes, f"{name}/turns": split.turns}
        counts |= {f"{name}/reward": split.reward[0]} if split.reward else {}
    return counts | {"sampled_tokens": summary.sampled_tokens, "episode_s": summary.duration_s, "drift": summary.drift}


def _last(run: RunReader) -> dict[str, float]:
    return {name: points[-1][1] for name, points in series(run.metrics()).items()}


def _beside(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, tuple[float | None, float | None]]:
    return {name: (a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])}
