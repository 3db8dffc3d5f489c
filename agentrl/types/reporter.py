"""Events of a running run. Implementations are in `agentrl/reporters/`.

started
  phase, then step and episode_stage, episode ...     as often as there are phases
  work                                                apart from the phase, from any thread
  metrics                                             of an iteration or of an evaluation
  watch                                               when an engine, a pool or a scheduler begins
  note, warning                                       at any time
ended
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from agentrl.types.episode import Episode

Metrics = Mapping[str, Any]
"""Line of `metrics.jsonl`: `stage`, `split`, `iteration`, and numbers by name."""


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """Start or continuation of a run.

    Attributes:
        id: unique, and the same each time the run continues.
        command: `train`, `rollout` or `eval`.
        recipe: resolved, as JSON values.
        continues: whether an earlier process began it.
        history: its metrics so far.
    """

    path: Path
    id: str
    name: str
    command: str
    recipe: Mapping[str, Any]
    continues: bool = False
    history: Sequence[Metrics] = ()


class Reporter:
    """Receives the events of a run. Events that a subclass does not override are ignored."""

    def started(self, run: RunStart) -> None:
        """The run begins, or continues; no episode has been played yet.

        Raises:
            AgentRLError: it cannot be reported. The run does not begin.
        """

    def phase(self, name: str, total: int) -> None:
        """A phase of `total` episodes or steps begins, or, under the same name, a further round of it."""

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        """A step of the phase is done; `done`: number of finished steps."""

    def episode_stage(self, episode_id: str, stage: str | None) -> None:
        """An episode in flight enters a stage (`sandbox`, `agent`, `score`); None: it has left."""

    def episode(self, episode: Episode) -> None:
        """An episode has ended and is stored."""

    def work(self, name: str, done: int, total: int) -> None:
        """Other work than that of the phase, for example on an index, has got so far. May come from any thread.

        Args:
            done: steps; 0: it begins. It has ended when `done` is `total`.
            total: 0: unknown.
        """

    def watch(self, kind: str, read: Callable[[], Any]) -> None:
        """A part of the process can be asked at any time, from any thread, what it does now.

        Args:
            kind: `queue`, `conversations`, `sandboxes` or `engine`.
            read: a method of the part, which returns JSON values. Hold it weakly: the part may end before the run.
        """

    def metrics(self, line: Metrics) -> None:
        """An iteration (`split` is `train`), an evaluation (`eval`) or some steps of a stage (`sft`, `preference`) have
        ended."""

    def note(self, text: str) -> None:
        """A line of text that may interest the user."""

    def warning(self, text: str) -> None:
        """A line of text that the user should read."""

    def ended(self, error: BaseException | None) -> None:
        """The run is over. `error`: the reason of an early end; None: it is finished."""


_WORKING_FOR: ContextVar[Reporter | None] = ContextVar("_WORKING_FOR", default=None)


@contextmanager
def working_for(reporter: Reporter) -> Iterator[Reporter]:
    """`report_work` tells this reporter, in all tasks and threads that begin inside."""
    before = _WORKING_FOR.set(reporter)
    try:
        yield reporter
    finally:
        _WORKING_FOR.reset(before)


def report_work(name: str, done: int, total: int) -> None:
    """Tells the reporter of the run or command how far long work is (`Reporter.work`). Without one, nothing happens."""
    if (reporter := _WORKING_FOR.get()) is not None:
        reporter.work(name, done, total)


def numbers(line: Metrics) -> dict[str, float]:
    """Returns the finite numbers of a line of metrics by name: `loss`, `outer/inner` of nested ones, `eval/loss` of an
    evaluation, `stage/loss` and `stage/eval/loss` of a stage that the recipe names.
    """
    return dict(_numbers(line, source_of(line)))


def source_of(line: Metrics) -> str:
    """Returns the prefix of the names of a line's numbers: its stage, and `eval/` if it is of an evaluation."""
    stage, split = line.get("stage", UNNAMED), line.get("split", "train")
    return ("" if stage == UNNAMED else f"{stage}/") + ("" if split in TRAINING else f"{split}/")


UNNAMED = "rl"
"""Stage of a recipe that lists none."""

TRAINING = ("train", "sft", "preference")
"""Splits of metrics of training; others are evaluations."""


def _numbers(line: Metrics, prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif name in ("iteration", "step", "split", "stage") or isinstance(value, bool):
            continue
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)
