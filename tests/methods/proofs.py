"""Proofs that a method acts: it fires, it bites, it trains, and without it the first two fail."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentrl
from agentrl.config.loader import load_recipe
from agentrl.config.profiles import CONTROL
from agentrl.config.recipe import Recipe
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode

SMALL = (
    "warm_start.script=oracle", "warm_start.episodes=32", "warm_start.steps=100", "train.iterations=2",
    "train.groups=4", "train.group_size=4", "train.minibatch=8", "train.checkpoint_every=1",
    "eval.episodes=2", "eval.every=0", "concurrency=8",
)  # fmt: skip
"""Overrides: a training of two iterations, by a policy that knows the task a little."""


@dataclass(frozen=True)
class Method:
    """A method and its proofs.

    Attributes:
        fires: what only the method's mechanism writes, of a stored run: one value for each episode or iteration.
        bites: what the recipe makes of episodes that are written by hand.
        expected: what the paper says that `bites` is.
        small: overrides that bring the method's thresholds inside the two iterations. The control has none of them:
            overrides come after it, and would bring the method back.
    """

    name: str
    fires: Callable[[RunReader], Sequence[Any]]
    bites: Callable[[Recipe], Any]
    expected: Any
    small: tuple[str, ...] = ()

    def recipe(self, profile: str | None = None) -> Recipe:
        return load_recipe(self.name, self._small(profile), profile)

    def _small(self, profile: str | None) -> tuple[str, ...]:
        return self.small if profile is None else ()

    def play(self, folder: Path, profile: str | None = None) -> RunReader:
        """Trains the method, or its control, for two iterations."""
        agentrl.train(self.name, overrides=[*SMALL, *self._small(profile)], profile=profile, out=folder, reporters=())
        return RunDir.read(folder)

    def proves(self, run: RunReader, profile: str | None = None) -> None:
        """Asserts that the method fires in a run, and bites on written episodes."""
        values = [json.dumps(value) for value in self.fires(run)]
        assert values, f"{self.name} wrote nothing"
        assert len(set(values)) > 1, f"{self.name} wrote the same everywhere: {values[0]}"
        assert self.bites(self.recipe(profile)) == self.expected

    def acts_without(self, run: RunReader) -> bool:
        """Returns True if a run of the control passes for one of the method."""
        try:
            self.proves(run, CONTROL)
        except AssertionError:
            return False
        return True


def learned(run: RunReader) -> None:
    """Asserts that both updates had a signal, and that the weights changed."""
    updates = [line for line in run.metrics() if line.get("split") == "train" and "grad_norm" in line]
    assert len(updates) == 2
    assert all(math.isfinite(line["loss"]) for line in updates)
    assert any(line["grad_norm"] > 0 for line in updates)
    assert any(line["zero_variance_groups"] < 1 for line in updates)


def played(run: RunReader) -> list[Episode]:
    """Returns the episodes that trained the policy."""
    return [episode for episode in run.episodes() if episode.split == "train"]
