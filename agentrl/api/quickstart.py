"""The shipped quickstart recipe: one training, or a comparison of credit estimators over seeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from agentrl.api.run_dirs import free_folder
from agentrl.api.train import train
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe, TrainingRecipe
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError
from agentrl.types.reporter import report_work
from agentrl.types.stdlib import piped

CREDITS: dict[str, list[str]] = {
    "GRPO": ["credit={use: grpo}"],
    "GRPO, discounted outcome": ["credit={use: grpo, gamma: 0.95}"],
    "GiGPO": [],
}
"""The estimators to compare, and the overrides that select each."""

Metrics = list[dict[str, Any]]

_NAME = "iterations of all runs"
_ITERATION = re.compile(r"train (\d+) ")
"""The line that a training without a terminal prints of each iteration."""


def quickstart(seed: int, out: Path | None, overrides: Sequence[str]) -> Path:
    """Trains the recipe and returns the run directory. An interrupted quickstart continues."""
    path = out or _unfinished_or_free(Path("runs/quickstart"))
    train(load_recipe("quickstart", _for_seed(seed, overrides)), out=path)
    return path


def before_and_after(run: RunReader) -> tuple[Episode, Episode] | None:
    """An episode of the first iteration and a solved one of a late iteration, of one maze; None if none was solved.

    Takes the solved episode with the largest credit: where all of a group were solved, all credit is 0.
    """
    last = max(line["iteration"] for line in run.metrics() if line["split"] == "train") - 1
    solved = [row.id for row in run.rows(split="train", iteration=last) if row.reward]
    if not solved:
        return None
    after = run.get(max(solved, key=lambda id: max(map(abs, turn_credit(run, id)))))
    early = [row for row in run.rows(split="train", iteration=0, order="turns") if row.task_id == after.task.id]
    return run.get(early[len(early) // 2].id), after


def turn_credit(run: RunReader, episode_id: str) -> list[float]:
    """The advantage of each turn; empty for an episode without credit."""
    credit = run.credit(episode_id)
    return credit.turn_advantages if credit is not None else []


def compare(
    seeds: int, jobs: int, out: Path, overrides: Sequence[str], note: Callable[[str], None]
) -> dict[str, dict[str, list[Any]]]:
    """Trains every estimator on every seed, each run in its own process, and returns the figures of each estimator.

    Tells how many iterations of all runs are done (`report_work`).

    Args:
        jobs: processes at the same time.
        note: receives a line per finished run.

    Raises:
        AgentRLError: a run failed; with its output.
    """

    todo = [(name, seed) for seed in range(seeds) for name in CREDITS]
    progress = _Iterations(len(todo), load_recipe("quickstart", overrides))

    def trained(job: tuple[str, int]) -> Metrics:
        name, seed = job
        path = out / f"{name.split(',')[0].lower()}{'-discounted' if ',' in name else ''}-{seed}"
        metrics = _train_in_process(
            f"{name}, seed {seed}",
            path,
            _for_seed(seed, [*CREDITS[name], *overrides]),
            lambda ready: progress.told(job, ready),
        )
        progress.ended(job)
        final = [line for line in metrics if line["split"] == "eval"][-1]
        note(f"{name}, seed {seed}: solved {final['success']:.2f}, turns {final['turns']:.1f}")
        return metrics

    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(todo, pool.map(trained, todo), strict=True))
    return {name: figures([found[name, seed] for seed in range(seeds)]) for name in CREDITS}


class _Iterations:
    """Counts the iterations of several runs, and tells how far all of them are."""

    def __init__(self, runs: int, recipe: Recipe) -> None:
        self._each = TrainingRecipe.of(recipe).train.iterations
        self._total = runs * self._each
        self._done: dict[tuple[str, int], int] = {}
        self._tell = copy_context().run  # of the thread that began: those of the pool have none
        self._lock = threading.Lock()
        report_work(_NAME, 0, self._total)

    def told(self, job: tuple[str, int], ready: int) -> None:
        """A run has finished `ready` iterations."""
        with self._lock:
            self._done[job] = min(ready, self._each)
            self._tell(report_work, _NAME, sum(self._done.values()), self._total)

    def ended(self, job: tuple[str, int]) -> None:
        """A run has ended, perhaps before its last iteration."""
        self.told(job, self._each)


def figures(runs: Sequence[Metrics]) -> dict[str, list[Any]]:
    """For each run: success at the start and at the end, iterations to 90% success, turns at the end."""
    evaluations = [[line for line in run if line["split"] == "eval"] for run in runs]
    return {
        "solved_at_start": [each[0]["success"] for each in evaluations],
        "solved_at_end": [each[-1]["success"] for each in evaluations],
        "iterations_to_90": [_iterations_to(0.9, run) for run in runs],
        "turns_at_end": [each[-1]["turns"] for each in evaluations],
    }


def _iterations_to(level: float, metrics: Metrics) -> int | None:
    """The first iteration at which the mean success of three iterations reaches `level`."""
    solved = [line["success"] for line in metrics if line["split"] == "train"]
    return next((k for k in range(3, len(solved) + 1) if sum(solved[k - 3 : k]) / 3 >= level), None)


def _for_seed(seed: int, overrides: Sequence[str]) -> list[str]:
    return [f"seed={seed}", f"tasks.args.seed={seed}", *overrides]


def _train_in_process(what: str, path: Path, overrides: Sequence[str], told: Callable[[int], None]) -> Metrics:
    """Trains the recipe in a process of its own.

    Args:
        told: callback with the number of finished iterations.
    """
    command = [sys.executable, "-m", "agentrl.cli", "train", "quickstart", "--out", str(path)]
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*command, *(part for text in overrides for part in ("--set", text))],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process,
    ):
        try:
            for line in piped(process.stdout):
                if (iteration := _ITERATION.match(line)) is not None:
                    told(int(iteration[1]))
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            raise AgentRLError(f"{what} failed:\n{errors.read()}", place=str(path))
    with RunDir.read(path) as run:
        return run.metrics()


def _unfinished_or_free(path: Path) -> Path:
    """The newest of `path`, path-2, ... if that run is unfinished, else the next free folder."""
    newest, number = path, 2
    while path.with_name(f"{path.name}-{number}").exists():
        newest, number = path.with_name(f"{path.name}-{number}"), number + 1
    if not (newest / "run.json").exists():
        return newest
    with RunDir.read(newest) as run:
        return free_folder(path) if run.info.get("finished") else newest
