"""Trainings in processes of their own; some of one seed, whose tools take random times, so that batches differ."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from agentrl.config.loader import load_recipe
from agentrl.store.run_dir import RunDir
from agentrl.types.paths import data_path
from benchmarks import forked
from benchmarks.harness import Report

Line = dict[str, Any]

TINY = ["warm_start.episodes=8", "warm_start.steps=2", "train.groups=2", "train.group_size=2"]
"""Of smoke runs: a training that learns nothing."""

_ITERATION = re.compile(r"(\w+ )?train \d")
"""An iteration of reinforcement, in the lines that a training prints where there is no terminal."""

MEASURED = ("rollout_s", "train_s", "episodes_in_flight", "rollouts_wait_s", "canary_s", "at",
            "loop_stalls", "loop_stall_s")  # fmt: skip
"""Metrics that are times."""

HIGH_ENTROPY = ("warm_start.steps=60", "eval.episodes=32")
"""The policy is at about 6 nats after so short a warm start: the more tokens are likely, the more rounding can do."""

DELAYED = """

import asyncio, os


async def _pause() -> None:
    if os.urandom(1)[0] < 128:
        await asyncio.sleep(os.urandom(1)[0] * {most_s} / 255)


class DelayedHouse(House):
    async def open(self, task: Task, sandbox: Any) -> None:
        await _pause()
        await super().open(task, sandbox)
        await _pause()

    async def _run(self, command: str) -> str:
        await _pause()
        try:
            return await super()._run(command)
        finally:
            await _pause()


async def delayed_reached(task: Task, sandbox: Any) -> float:
    await _pause()
    return await reached(task, sandbox)
"""
"""What is added to the quickstart's task: pauses before and after every command in the sandbox, and before rewards."""


def delayed_quickstart(folder: Path, most_s: float) -> Path:
    """A copy of the quickstart's recipe whose tool, sandbox and reward pause at random for up to `most_s` seconds."""
    shutil.copytree(data_path("recipes", "quickstart"), folder)
    task, recipe = folder / "task.py", folder / "recipe.yaml"
    task.write_text(task.read_text() + DELAYED.format(most_s=most_s))
    text = recipe.read_text()
    for plain, delayed in (("task.py:House", "task.py:DelayedHouse"), ("task.py:reached", "task.py:delayed_reached")):
        assert plain in text, f"the quickstart's recipe has no {plain}"
        text = text.replace(plain, delayed)
    recipe.write_text(text)
    return folder


@dataclass(frozen=True)
class Trained:
    """A training that has ended.

    Attributes:
        metrics: the lines of its metrics.
        seconds, cpu_seconds, peak_gib: of its last process, if it went on where an earlier one was stopped.
    """

    metrics: list[Line]
    seconds: float
    cpu_seconds: float
    peak_gib: float

    def of(self, split: str) -> list[Line]:
        """The lines of a split: `train`, `eval`."""
        return [line for line in self.metrics if line["split"] == split]


class TrainingFailed(Exception):
    """A training ended with an error."""


def steps_of(recipe: Path | str, overrides: Sequence[str], profile: str | None = None) -> float:
    """Steps of progress of a training."""
    return sum(_parts(recipe, overrides, profile))


def _parts(recipe: Path | str, overrides: Sequence[str], profile: str | None) -> tuple[float, int]:
    """Steps of progress before reinforcement (ten of its own take about as long as an iteration), and iterations."""
    loaded = load_recipe(str(recipe), list(overrides), profile)
    offline = [loaded.warm_start, *(stage.sft for stage in loaded.stages)]
    iterations = 0 if loaded.train is None else loaded.train.iterations
    return 1 + sum(each.steps or 0 for each in offline if each) / 10, iterations


def run_training(
    recipe: Path | str,
    out: Path,
    overrides: Sequence[str],
    report: Report | None = None,
    *,
    threads: int = 1,
    profile: str | None = None,
) -> Trained:
    """Trains in a process of its own, or goes on with it.

    Args:
        report: is told of every iteration; `steps_of` were planned.

    Raises:
        TrainingFailed: the text has the end of what it said.
    """
    before, left = _parts(recipe, overrides, profile)

    def heard(line: str) -> None:
        nonlocal before, left
        if report and left and _ITERATION.match(line):
            report.done(f"{out.name}: {line.split('  ')[0]}", before + 1)
            before, left = 0.0, left - 1

    trained = _run(["train", str(recipe)], out, overrides, profile, report, heard, threads)
    if report and before + left:
        report.done(out.name, before + left)
    return trained


def run_warm_start(
    recipe: Path | str,
    out: Path,
    overrides: Sequence[str],
    report: Report | None = None,
    *,
    profile: str | None = None,
) -> Path:
    """Trains the warm start of a recipe alone; returns its weights.

    Raises:
        TrainingFailed: see `run_training`.
    """
    run_training(recipe, out, warming(recipe, overrides), report, profile=profile)
    return max((out / "checkpoints").iterdir())


def warming(recipe: Path | str, overrides: Sequence[str]) -> list[str]:
    """Returns the overrides that leave of a recipe its warm start alone."""
    warm = load_recipe(str(recipe), list(overrides)).warm_start
    assert warm is not None, f"{recipe} has no warm start"
    stage = json.dumps([{"name": "warm", "sft": warm.model_dump(mode="json")}])
    return [*overrides, "eval=null", f"stages={stage}", "warm_start=null"]


def weights(checkpoint: Path) -> list[str]:
    """Returns the overrides with which a recipe begins from a checkpoint, in place of its warm start."""
    return [f"model={{path: {checkpoint.resolve()}, device: cpu}}", "warm_start=null"]


def run_evaluation(
    recipe: Path | str,
    out: Path,
    overrides: Sequence[str],
    report: Report | None = None,
    *,
    episodes: int,
    profile: str | None = None,
) -> Line:
    """Evaluates a policy in a process of its own; returns the metrics.

    Raises:
        TrainingFailed: the text has the end of what it said.
    """
    evaluated = _run(["eval", str(recipe), "--n", str(episodes)], out, overrides, profile, report)
    return evaluated.metrics[-1]


def _run(
    command: Sequence[str],
    out: Path,
    overrides: Sequence[str],
    profile: str | None,
    report: Report | None,
    heard: Callable[[str], None] = lambda line: None,
    threads: int = 1,
) -> Trained:
    """Runs a command of agentrl in a process of its own. `heard` gets each line that it prints."""
    sets = [part for override in overrides for part in ("--set", override)]
    began = time.perf_counter()
    profiled = ["--profile", profile] if profile is not None else []
    arguments = ["-m", "agentrl.cli", *command, "--out", str(out), *profiled, *sets]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "COLUMNS": "160"}
    said: deque[str] = deque(maxlen=40)
    pid, lines = _start(arguments, environment, forks=report is not None and report.smoke)
    with lines:
        for line in lines:
            said.append(line)
            heard(line)
    _, status, used = os.wait4(pid, 0)  # of this process alone, unlike getrusage
    if code := os.waitstatus_to_exitcode(status):
        raise TrainingFailed(f"{out}: exit code {code}\n{''.join(said)}")
    with RunDir.read(out) as run:
        metrics = run.metrics()
    seconds = time.perf_counter() - began
    return Trained(metrics, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)


def _start(arguments: Sequence[str], environment: dict[str, str], *, forks: bool) -> tuple[int, TextIO]:
    """Starts `python ARGUMENTS` or, for a smoke run, a fork that does the same. Returns its number and what it says."""
    reads, writes = os.pipe()
    try:
        if forks:
            pid = forked.start(arguments, environment, writes, writes, leads=False)
        else:
            argv = [sys.executable, *arguments]
            streams: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
            streams += [(os.POSIX_SPAWN_DUP2, writes, stream) for stream in (1, 2)]
            pid = os.posix_spawn(sys.executable, argv, environment, file_actions=streams)
    finally:
        os.close(writes)
    return pid, os.fdopen(reads)


def train(recipe: Path | str, out: Path, overrides: Sequence[str], report: Report | None = None) -> list[Line]:
    """The metrics of one training, times left out."""
    metrics = run_training(recipe, out, overrides, report).metrics
    return [{name: value for name, value in line.items() if name not in MEASURED} for line in metrics]


def differences(runs: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """The metrics in which some training differs from the first, with the first line of metrics where it does."""
    found: dict[str, str] = {}
    first = runs[0]
    for number, run in enumerate(runs[1:], start=2):
        if len(run) != len(first):
            found.setdefault("lines", f"training {number} has {len(run)} lines of metrics, the first {len(first)}")
        for mine, theirs in zip(first, run, strict=False):
            for name in sorted(mine.keys() | theirs.keys()):
                if mine.get(name) != theirs.get(name):
                    where = f"{mine['split']} {mine['iteration']}"
                    found.setdefault(
                        name, f"{name}: {mine.get(name)} and {theirs.get(name)} ({where}, training {number})"
                    )
    return list(found.values())
