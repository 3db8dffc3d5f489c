"""Trainings of one seed whose tools take random times, so that batches differ from run to run; and their metrics."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.store.run_dir import RunDir
from agentrl.types.paths import data_path

MEASURED = ("rollout_s", "train_s", "episodes_in_flight", "rollouts_wait_s", "canary_s", "at")
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


def train(recipe: Path, out: Path, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """The metrics of one training, times left out."""
    sets = [part for override in overrides for part in ("--set", override)]
    subprocess.run(
        [sys.executable, "-m", "agentrl.cli", "train", str(recipe), "--out", str(out), *sets],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with RunDir.read(out) as run:
        return [{name: value for name, value in line.items() if name not in MEASURED} for line in run.metrics()]


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
