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
    """The summary of all episodes that are stored."""
    rows = run.rows()
    data = [row for row in rows if row.status in ("done", "truncated")]
    failures = Counter(row.error for row in rows if row.error)
    told = run.failures()
    failures.update(str(entry.get("kind", "unknown")) for entry in told if not entry.get("final"))
    return Summary(
        episodes=len(rows),
        groups=len({row.group_id for row in rows}),
        mixed_groups=len(groups_that_differ((row.group_id, row.opening) for row in rows)),
        statuses=_counts(rows, "status"),
        stops=_counts(data, "stop"),
        stages=_stages(run.metrics()),
        splits={split: _split([row for row in rows if named_split(row) == split]) for split in _splits(rows)},
        calls=sum(row.calls for row in rows),
        bad_calls={
            name: sum(getattr(row, name) for row in rows)
            for name in ("malformed", "unknown", "refused", "timeouts", "raised")
        },
        raised=list(_first_of_each(row.first_raised for row in rows if row.first_raised)),
        sampled_tokens=sum(row.sampled_tokens for row in rows),
        duration_s=sum(row.duration_s for row in rows) / len(rows) if rows else 0.0,
        drift=sum(row.drift > 0 for row in rows),
        branches=sum(row.branches > 0 for row in rows),
        contexts=sum(row.contexts > 1 for row in rows),
        notes=most_frequent(note for row in data for note in (row.notes or "").splitlines()),
        failures=dict(failures.most_common()),
        first_failures=[_failure(entry) for entry in {str(e.get("kind")): e for e in reversed(told)}.values()][::-1],
    )


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


def _splits(rows: Iterable[EpisodeRow]) -> list[str]:
    """Returns the splits in the order of a training: by stage, then demonstrations, training, evaluations."""
    order = ("demo", "rollout", "train", "eval")

    def place(name: str) -> tuple[int, str]:
        split = name.rpartition("/")[2]
        return (order.index(split) if split in order else 4), split

    begun: dict[str, float] = {}
    for row in rows:
        stage = named_split(row).rpartition("/")[0]
        begun[stage] = min(begun.get(stage, row.created_at), row.created_at)
    return sorted({named_split(row) for row in rows}, key=lambda name: (begun[name.rpartition("/")[0]], *place(name)))


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


def _split(rows: Sequence[EpisodeRow]) -> SplitSummary:
    data = [row for row in rows if row.status in ("done", "truncated")]
    rewards = [row.reward for row in data if row.reward is not None]
    return SplitSummary(
        episodes=len(rows),
        data=len(data),
        reward=(sum(rewards) / len(rewards), min(rewards), max(rewards)) if rewards else None,
        turns=sum(row.turns for row in data) / len(data) if data else 0.0,
    )


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


def _counts(rows: Iterable[EpisodeRow], field: str) -> dict[str, int]:
    return dict(Counter(str(getattr(row, field)) or "-" for row in rows).most_common())
