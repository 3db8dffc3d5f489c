"""Crediting a stored run again."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from agentrl.api.recipes import Overrides, as_lines
from agentrl.api.run import Run, folder_of
from agentrl.api.run_stages import RunStages
from agentrl.config.credit import CreditSettings
from agentrl.config.loader import settings_of
from agentrl.credit.registry import CreditAssigner, EpisodeCredit, load_credit
from agentrl.store.rescored import load, rescored
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError


@dataclass(frozen=True)
class Recredit:
    """What an estimator says about a stored run.

    Attributes:
        episodes: the credited ones, by id.
        batches: metrics of each batch that was credited together: one iteration of one split of one stage.
    """

    credit: CreditAssigner
    episodes: dict[str, Episode]
    credits: list[EpisodeCredit]
    batches: list[dict[str, Any]]

    def only(self, name: str) -> Recredit:
        """The same for the episodes that have `name` in their id.

        Raises:
            StoreError: no credited episode has.
        """
        chosen = [credit for credit in self.credits if name in credit.episode_id]
        if not chosen:
            raise StoreError(f"no credited episode has {name!r} in its id")
        return replace(self, credits=chosen)

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "estimator": self.credit.estimator.name,
            "settings": self.credit.settings.model_dump(mode="json"),
            "batches": self.batches,
            "episodes": [msgspec.to_builtins(credit) for credit in self.credits],
        }


def recredit(
    run: str | Path | Run,
    estimator: str | None = None,
    *,
    settings: Overrides = (),
    stage: str | None = None,
    rewards: str | None = None,
    save: bool = False,
) -> Recredit:
    """Credits the scored episodes of a run, one iteration of one split at a time, as training does.

    Args:
        estimator: a name, or code relative to the folder of the run's recipe, as in the recipe; default: the stage's
            own, whose settings `settings` then change.
        stage: only its episodes; default: those of all stages, with an `estimator`; else there must be one.
        settings: `{"gamma": 0.9}`, or `["gamma=0.9"]`.
        rewards: use the scores that `rescore` gave under this name instead of the recorded ones.
        save: store the credit; it takes the place of earlier credit wherever a run is looked at.

    Raises:
        CreditError: no such estimator or setting, or the episodes lack what it needs.
        StoreError: there is no such run or stage, or nothing in it was scored.
    """
    path = folder_of(run)
    with RunDir.open(path) if save else RunDir.read(path) as stored:
        stages = RunStages(stored)
        credit, prefix = _chosen(stored, stages, stage, estimator, settings_of(as_lines(settings)))
        episodes = [e for e in stored.episodes() if e.split != "demo" and e.id.startswith(prefix)]
        if rewards is not None:
            episodes = list(rescored(episodes, load(path, rewards)))

        def together(episode: Episode) -> tuple[bool, str, str, int]:
            split = episode.split
            return split == "eval", split, stages.prefix_of(episode.id), episode.iteration

        scored = sorted((e for e in episodes if e.scored), key=lambda e: (*together(e), e.id))
        if not scored:
            raise StoreError("holds no scored episode", place=str(path), remedy="agentrl show RUN lists what it holds")
        credits: list[EpisodeCredit] = []
        batches = []
        note = "agentrl credit --save" + (f", rewards {rewards!r}" if rewards is not None else "")
        for (_, split, of, iteration), members in itertools.groupby(scored, key=together):
            given, metrics = credit.assign(list(members))
            credits += given
            named = {"stage": of.removesuffix("/")} if of else {}
            batches.append({"split": split, **named, "iteration": iteration, **metrics})
            for one in given if save else ():
                stored.add_credit(
                    one.episode_id, one.estimator, one.turn_advantages, one.parts, iteration=iteration, note=note
                )
    return Recredit(credit, {episode.id: episode for episode in scored}, credits, batches)


def _chosen(
    run: RunDir, stages: RunStages, stage: str | None, estimator: str | None, settings: dict[str, Any]
) -> tuple[CreditAssigner, str]:
    """The credit to give, and what the ids of the episodes begin with that it is for."""
    if estimator is not None:
        prefix = "" if stage is None else stages.chosen(stage)[1]
        return load_credit(CreditSettings(use=estimator, **settings), Path(run.info.get("base", ""))), prefix
    recipe, prefix = stages.chosen(stage)
    if recipe is None:
        raise StoreError("names no recipe", place=str(run.path), remedy="say which: --estimator NAME")
    return load_credit(CreditSettings(**{**recipe.credit.model_dump(), **settings}), recipe.base), prefix
