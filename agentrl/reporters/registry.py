"""The registry of trackers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from agentrl.config.recipe import Track
from agentrl.registry.registry import Registry, subclass_of
from agentrl.reporters.relay import Guarded
from agentrl.reporters.tracker import Tracker
from agentrl.types.errors import MissingExtra
from agentrl.types.reporter import Reporter

TRACKERS: Registry[type[Reporter]] = Registry(
    kind="tracker",
    group="trackers",
    key="track",
    built_in={
        "tensorboard": "agentrl.reporters.tensorboard:TensorBoard",
        "wandb": "agentrl.reporters.wandb:WandB",
        "mlflow": "agentrl.reporters.mlflow:MLflow",
        "trackio": "agentrl.reporters.trackio:Trackio",
    },
    wanted="a Tracker or another Reporter",
    accept=subclass_of(Reporter),
    contracts=[Reporter],
)


def trackers(entries: Sequence[Track], base: Path) -> list[Guarded]:
    """Makes the trackers of a recipe.

    Args:
        base: folder of the recipe.

    Raises:
        RecipeError: a tracker does not exist, or a setting is wrong.
        MissingExtra: the package of a tracker is not installed.
    """
    return [
        Guarded(_reporter(entry, name, base, f"track.{index}"), f"track.{index} ({entry.use})")
        for index, (entry, name) in enumerate(zip(entries, _names(entries), strict=True))
    ]


def _reporter(entry: Track, name: str, base: Path, place: str) -> Reporter:
    loaded = TRACKERS.chosen(entry, base, place)
    try:
        reporter: Reporter = loaded.make()
    except MissingExtra as error:
        raise error.at(place) from None
    if isinstance(reporter, Tracker):
        reporter.name = name
    return reporter


def _names(entries: Sequence[Track]) -> list[str]:
    """A unique name for each tracker, valid as a file name; the second of a kind is `wandb-2`."""
    names: list[str] = []
    for entry in entries:
        name = re.sub(r"\W+", "-", entry.use).strip("-")
        earlier = sum(found == name or found.startswith(f"{name}-") for found in names)
        names.append(f"{name}-{earlier + 1}" if earlier else name)
    return names
