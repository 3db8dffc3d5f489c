"""Summary statistics of a run, read from the index without opening a shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.types.episode import ErrorRecord
from agentrl.types.figures.notes import most_frequent
from agentrl.types.figures.openings import groups_that_differ
from agentrl.types.reporter import TRAINING, UNNAMED, numbers

PROGRESS = ("success", "reward", "turns", "entropy", "kl_old", "clip_fraction", "grad_norm",
            "staleness_mean", "rollout_s", "train_s")  # fmt: skip
"""The metrics of an iteration that tell most about its progress."""


class SplitSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One split of a run: `data` counts the episodes without failure, `reward` is mean, minimum and maximum over scored
    ones (None without any), `turns` the mean per episode without failure."""

    episodes: int
    data: int
    reward: tuple[float, float, float] | None
    turns: float


class StageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a stage, and the first and last value of its metric of progress (`shown`; "" without one)."""

    name: str
    kind: str
    iteration: int
    shown: str
    first: float | None
    last: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and means of a run.

    Attributes:
        mixed_groups: groups whose episodes began with different prompts.
        statuses, stops: number of episodes by status and by stop reason.
        stages: of a run that has several, in order.
        splits: statistics by split: demonstrations, training and evaluation are not comparable. Prefixed by the name of
            the stage, `learn/train`, if stages have names.
        sampled_tokens: over all episodes, as `calls`, and the calls that failed by outcome.
        raised: of the calls whose tool raised an exception: the first one of each line of user code.
        drift: episodes in which the tokens drifted at least once.
        branches: episodes with an intended branch (a rewritten context, a summary, other tools).
        contexts: episodes with several conversations.
        failures: by kind: episodes that ended in an error, and attempts that were retried.
        notes: the most frequent reasons for rewards of 0, as `COMPONENT: KIND`, with the number of episodes.
        first_failures: first message of each kind, with its stage and its line of user code.
    """

    episodes: int
    groups: int
    mixed_groups: int
    statuses: dict[str, int]
    stops: dict[str, int]
    stages: list[StageSummary]
    splits: dict[str, SplitSummary]
    calls: int
    bad_calls: dict[str, int]
    raised: list[str]
    sampled_tokens: int
    duration_s: float
    drift: int
    branches: int
    contexts: int
    notes: dict[str, int]
    failures: dict[str, int]
    first_failures: list[str]

    @property
    def failed(self) -> int:
        """Number of failed episodes."""
        return self.episodes - sum(split.data for split in self.splits.values())


def summarise(run: RunReader) -> Summary:
    """The summary of all episodes that are stored. The index counts them: a large run takes a fraction of a second."""
    select, told = run.select, run.failures()
    ended, groups = select("COUNT(*), COUNT(DISTINCT group_id) FROM all_episodes")[0]
    failures = Counter(_counts(run, "error", "WHERE error IS NOT NULL"))
    failures.update(str(entry.get("kind", "unknown")) for entry in told if not entry.get("final"))
    sums = select(f"{', '.join(f'SUM({name})' for name in _SUMMED)}, AVG(duration_s) FROM all_episodes")[0]
    *counted, duration_s = (value or 0 for value in sums)
    of = dict(zip(_SUMMED, counted, strict=True))
    some = {name: select(f"COUNT(*) FROM all_episodes WHERE {sql}")[0][0] for name, sql in _SOME.items()}
    openings = select("DISTINCT group_id, opening FROM all_episodes")
    raised = select("first_raised FROM all_episodes WHERE first_raised IS NOT NULL ORDER BY created_at, id")
    notes = select(f"notes FROM all_episodes WHERE {_DATA} AND notes IS NOT NULL")
    return Summary(
        episodes=ended,
        groups=groups,
        mixed_groups=len(groups_that_differ(openings)),
        statuses=_counts(run, "status"),
        stops=_counts(run, "stop", f"WHERE {_DATA}"),
        stages=_stages(run.metrics()),
        splits=_splits(run),
        calls=of.pop("calls"),
        sampled_tokens=of.pop("sampled_tokens"),
        bad_calls=of,
        raised=list(_first_of_each(text for (text,) in raised)),
        duration_s=float(duration_s),
        drift=some["drift"],
        branches=some["branches"],
        contexts=some["contexts"],
        notes=most_frequent(note for (lines,) in notes for note in lines.splitlines()),
        failures=dict(failures.most_common()),
        first_failures=[_failure(entry) for entry in {str(e.get("kind")): e for e in reversed(told)}.values()][::-1],
    )


_DATA = "status IN ('done', 'truncated')"
_SUMMED = ("malformed", "unknown", "refused", "timeouts", "raised", "calls", "sampled_tokens")
_SOME = {"drift": "drift > 0", "branches": "branches > 0", "contexts": "contexts > 1"}

STAGE = "substr(id, 1, MAX(instr('/' || id, '/' || split || '/') - 2, 0))"
"""The stage of an episode, if it has a name: its id begins with it."""


def _first_of_each(raised: Iterable[str]) -> Iterable[str]:
    """The first exception of each line of code."""
    by_place: dict[str, str] = {}
    for text in raised:
        by_place.setdefault(text.rpartition(" at ")[2], text)
    return by_place.values()


def failure_line(entry: Mapping[str, Any]) -> str:
    """Formats a line of `failures.jsonl` with its place in user code."""
    kind, message, place = (str(entry.get(name, "")) for name in ("kind", "message", "place"))
    return ErrorRecord(kind=kind, message=message, stage="", place=place).line


def _failure(entry: Mapping[str, Any]) -> str:
    stage, episode = (entry.get(name, "unknown") for name in ("stage", "episode"))
    return f"{failure_line(entry)} (stage {stage}, episode {episode})"


def _splits(run: RunReader) -> dict[str, SplitSummary]:
    """Returns the splits in the order of a training: by stage, then demonstrations, training, evaluations."""
    order = ("demo", "rollout", "train", "eval")
    means = ", ".join(f"{each}(CASE WHEN {_DATA} THEN reward END)" for each in ("AVG", "MIN", "MAX"))
    found = run.select(
        f"{STAGE} AS stage, split, COUNT(*), SUM({_DATA}), {means}, AVG(CASE WHEN {_DATA} THEN turns END), "
        "MIN(created_at) FROM all_episodes GROUP BY stage, split"
    )
    begun: dict[str, float] = {}
    for stage, *_, at in found:
        begun[stage] = min(begun.get(stage, at), at)
    found.sort(key=lambda row: (begun[row[0]], order.index(row[1]) if row[1] in order else len(order), row[1]))
    return {
        f"{stage}/{split}" if stage else split: SplitSummary(
            episodes=count,
            data=data,
            reward=None if mean is None else (mean, least, most),
            turns=turns or 0.0,
        )
        for stage, split, count, data, mean, least, most, turns, _ in found
    }


def named_split(row: EpisodeRow) -> str:
    """The split of an episode, with its stage if that has a name: `learn/train`."""
    stage, found, _ = f"/{row.id}".partition(f"/{row.split}/")
    return f"{stage[1:]}/{row.split}" if found and stage else row.split


def _stages(metrics: Sequence[Mapping[str, Any]]) -> list[StageSummary]:
    """The stages of a run, if there is more than one."""
    lines = by_stage(metrics)
    return [_stage(name, own) for name, own in lines.items()] if len(lines) > 1 else []


def _stage(name: str, lines: Sequence[Mapping[str, Any]]) -> StageSummary:
    kinds = {str(line.get("split")) for line in lines} & {"sft", "preference"}
    trained = [line for line in lines if line.get("split", "train") in TRAINING]
    curves = series({**line, "stage": UNNAMED} for line in trained)
    shown = progress(curves)
    points = curves[shown] if shown else []
    return StageSummary(
        name=name,
        kind=next(iter(kinds), "rl"),
        iteration=max((int(line.get("iteration", 0)) for line in trained), default=0),
        shown=shown or "",
        first=points[0][1] if points else None,
        last=points[-1][1] if points else None,
    )


def by_stage(metrics: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Lines of metrics by stage, in the order in which the stages began."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for line in metrics:
        lines.setdefault(str(line.get("stage", UNNAMED)), []).append(line)
    return lines


def series(metrics: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Metrics as curves: name -> (iteration, value), in order of iteration.

    Nested mappings become `outer/inner`; entries with a `split` other than `train` become `split/name`. A resumed
    run may repeat an iteration: the last value counts.
    """
    curves: dict[str, dict[float, float]] = {}
    for number, entry in enumerate(metrics):
        x = float(entry.get("iteration", entry.get("step", number)))
        for name, value in numbers(entry).items():
            curves.setdefault(name, {})[x] = value
    return {name: sorted(points.items()) for name, points in curves.items()}


def headline(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str | None:
    """Returns the name of the main curve of a run: success if present, else reward."""
    return _nearest_to(curves, ("success", "reward"))


def progress(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str | None:
    """Returns the name of the main curve of a stage: as `headline`; without episodes the accuracy, else the loss."""
    return headline(curves) or _nearest_to(curves, ("accuracy", "loss"))


def _nearest_to(curves: Mapping[str, Sequence[tuple[float, float]]], words: Sequence[str]) -> str | None:
    for word in words:
        names = [name for name in curves if word in name.rsplit("/", 1)[-1]]
        if names:
            return min(names, key=lambda name: ("/" in name, len(name)))
    return None


def _counts(run: RunReader, column: str, chosen: str = "") -> dict[str, int]:
    """Counts the values of a column, the most frequent first."""
    counted = f"{column}, COUNT(*) FROM all_episodes {chosen} GROUP BY {column} ORDER BY COUNT(*) DESC, MIN(created_at)"
    return {str(value) or "-": count for value, count in run.select(counted)}
