"""Exporting the episodes of a run to the formats of other tools."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.api.run import Run, folder_of
from agentrl.api.run_stages import RunStages
from agentrl.config.recipe import Recipe
from agentrl.integrations.exchange.formats import FORMATS
from agentrl.integrations.exchange.told import Origin, ToldEpisode, told
from agentrl.rollouts.builder import build
from agentrl.store.run_dir import RunDir
from agentrl.training.stages.data import parser_of
from agentrl.types.errors import RecipeError, StoreError, nearest


class ExportedEpisodes(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an export of episodes.

    Attributes:
        episodes: number of episodes.
        lost: what the format does not hold.
        changed: number of things that the exported conversations do not hold, by name.
    """

    place: str
    episodes: int
    lost: list[str]
    changed: dict[str, int]


def export_episodes(
    run: str | Path | Run, to: str, out: Path, *, stage: str | None = None, split: str | None = None
) -> ExportedEpisodes:
    """Writes the episodes of a run, in the order of their records.

    Args:
        to: name of the format.
        out: new file; of `atif`, a new folder.
        stage: only its episodes; default: the only stage.
        split: only `train`, `eval`, `demo` or `rollout`; default: all.

    Raises:
        RecipeError: the format does not exist, or `out` exists.
        StoreError: the run has no such episode, or no recipe.
    """
    if to not in FORMATS:
        raise RecipeError(f"there is no format {to!r}", place="--to", remedy=nearest(to, FORMATS))
    if out.exists():
        raise RecipeError(f"there is a {out} already", place="--out", remedy="take another name, or move it away")
    format = FORMATS[to]
    changed: Counter[str] = Counter()
    with RunDir.read(folder_of(run)) as stored:
        recipe, prefix = RunStages(stored).chosen(stage)
        if recipe is None:
            raise StoreError("names no recipe, whose call format its replies have", place=str(stored.path))
        parser = parser_of(build(recipe), fetch=False)
        count = 0

        def retold() -> Iterator[ToldEpisode]:
            nonlocal count
            for episode in stored.episodes(split=split, prefix=prefix):
                each = told(episode, parser)
                changed.update(each.lost)
                count += 1
                yield each

        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            format.write(retold(), out, Origin(stored.id, recipe.name, _model(recipe), stored.info["created_at"]))
            if not count:
                of = "".join(f" of {name}" for name in (split, stage) if name is not None)
                raise StoreError(f"has no episode{of}", place=str(stored.path))
        except BaseException:
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
            raise
    return ExportedEpisodes(place=str(out), episodes=count, lost=[*format.lost], changed=dict(changed))


def _model(recipe: Recipe) -> str:
    """Name of the policy's model."""
    path = recipe.model.path if recipe.model is not None else None
    return path or f"agentrl/{recipe.name}"
