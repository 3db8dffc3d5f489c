"""Proofs that a method acts: it fires, it bites, it trains, and without it one of the first two fails.

Each module of this folder with a list `METHODS` is a group. tests/methods/test_methods.py finds it.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from safetensors.numpy import load_file

import agentrl
import tests.methods
from agentrl.api.shipped import shipped_methods
from agentrl.config.loader import load_recipe
from agentrl.config.profiles import CONTROL
from agentrl.config.recipe import Recipe
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode

WARMED = (
    "warm_start.script=oracle", "warm_start.episodes=32", "warm_start.steps=100",
    "train.iterations=1", "train.groups=1", "train.group_size=2", "train.minibatch=2", "eval=null",
)  # fmt: skip
"""Overrides: a warm start of a base of 4 seconds, after which its policy knows the task a little."""

SMALL = (
    "train.iterations=2", "train.groups=4", "train.group_size=4", "train.minibatch=8", "train.checkpoint_every=1",
    "eval=null", "concurrency=8",
)  # fmt: skip
"""Overrides: a training of two iterations."""


@dataclass(frozen=True)
class Run:
    """A stored training of two iterations.

    Attributes:
        reader: what it recorded.
        began: the folder of the policy's first checkpoint; None: the method's own warm start made one.
    """

    path: Path
    reader: RunReader
    began: Path | None

    @property
    def played(self) -> list[Episode]:
        """The episodes that trained the policy."""
        return [episode for episode in self.reader.episodes() if episode.split == "train"]

    def metric(self, name: str) -> list[Any]:
        """The values of a metric, update by update."""
        return [line[name] for line in self.reader.metrics() if name in line]

    def weights(self, iteration: int) -> dict[str, Any]:
        """The policy's weights after an iteration; 0 is where it began."""
        before = self.began or warm_start_of(self.path)
        folder = self.path / f"checkpoints/it-{iteration:05}" if iteration else before
        return dict(load_file(folder / "model.safetensors"))


def learned(run: Run) -> None:
    """Asserts that an update had a signal, and that the weights changed."""
    updates = [line for line in run.reader.metrics() if line.get("split") == "train" and "grad_norm" in line]
    assert len(updates) == 2
    assert all(math.isfinite(line["loss"]) for line in updates)
    assert any(line["grad_norm"] > 0 for line in updates)
    assert any(line["zero_variance_groups"] < 1 for line in updates)
    before, after = run.weights(0), run.weights(2)
    assert any((before[name] != after[name]).any() for name in before)


@dataclass(frozen=True)
class Method:
    """A method and its proofs.

    Attributes:
        name: of its recipe.
        fires: what only the method's mechanism writes in a run: one value for each episode or iteration.
        bites: what the recipe makes of episodes that are written by hand.
        expected: what the paper says that `bites` is.
        small: overrides that bring the method's thresholds inside the two iterations. The control has none of them:
            overrides come after it, and would bring the method back.
        sized: overrides of the method and its control, after `SMALL`: sizes that the base needs.
        warmed: overrides that make a warm start of the base; None: the recipe trains from where it says.
        learns: asserts what the run changed.
        start: the recipe whose warm start the policy is from; default: its base.
        given: further overrides of the method, which are made when it is played: paths of what is made then.
    """

    name: str
    fires: Callable[[Run], Sequence[Any]]
    bites: Callable[[Recipe], Any]
    expected: Any
    small: tuple[str, ...] = ()
    sized: tuple[str, ...] = ()
    warmed: tuple[str, ...] | None = WARMED
    learns: Callable[[Run], None] = learned
    start: str | None = None
    given: Callable[[], tuple[str, ...]] = tuple

    @property
    def base(self) -> str:
        """The recipe that the method is added to, as commands take it."""
        return next(str(each.base) for each in shipped_methods() if each.name == self.name)

    def recipe(self, profile: str | None = None) -> Recipe:
        return load_recipe(self.name, self._small(profile), profile)

    def _small(self, profile: str | None) -> tuple[str, ...]:
        return self.small if profile is None else ()

    def play(self, folder: Path, profile: str | None = None) -> Run:
        """Trains the method, or its control, for two iterations."""
        began = None if self.warmed is None else warm(self.start or self.base, self.warmed)
        policy = () if began is None else (f"model={{path: {began}, device: cpu}}", "warm_start=null")
        given = self.given() if profile is None else ()
        overrides = [*SMALL, *policy, *self.sized, *self._small(profile), *given]
        agentrl.train(self.name, overrides=overrides, profile=profile, out=folder, reporters=())
        return Run(folder, RunDir.read(folder), began)

    def fired(self, run: Run) -> bool:
        """Returns True if the run has what the mechanism writes, and it is not the same everywhere."""
        return len({json.dumps(value) for value in self.fires(run)}) > 1


@cache
def warm(base: str, overrides: tuple[str, ...]) -> Path:
    """Returns the checkpoint after a warm start of a base; made once."""
    folder = Path(mkdtemp(prefix="agentrl-warm-")) / "run"
    agentrl.train(base, overrides=overrides, out=folder, reporters=())
    return warm_start_of(folder)


def warm_start_of(run: Path) -> Path:
    """Returns the checkpoint after the warm start of a run."""
    return next(run.glob("checkpoints/0*-warm_start-*"), run / "checkpoints/it-00000")


def groups() -> dict[str, list[Method]]:
    """Returns the methods of each group."""
    names = sorted(module.name for module in pkgutil.iter_modules(tests.methods.__path__))
    modules = [importlib.import_module(f"tests.methods.{name}") for name in names if not name.startswith("test_")]
    return {each.__name__.rpartition(".")[2]: each.METHODS for each in modules if hasattr(each, "METHODS")}


def acts(method: Method, folder: Path) -> None:
    """Asserts the four proofs: it fires, it trains, it bites, and without it the first or the last fails."""
    run = method.play(folder / "treated")
    assert method.fired(run), f"{method.name} wrote the same everywhere: {list(method.fires(run))[:1]}"
    method.learns(run)
    assert method.bites(method.recipe()) == method.expected
    if method.bites(method.recipe(CONTROL)) == method.expected:
        assert not method.fired(method.play(folder / "control", CONTROL)), f"the control passes for {method.name}"


def distinct(values: Iterable[Any]) -> list[Any]:
    """Returns the different values, in the order in which they came."""
    return list(dict.fromkeys(values))
